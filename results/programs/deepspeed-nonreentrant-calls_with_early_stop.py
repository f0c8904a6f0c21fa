"""deepspeed-nonreentrant, law calls_with_early_stop. Every region's function is called exactly as often as rules 2, 3 and 5
say."""
import collections, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(1)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    h4 = checkpoint(f1, p0)
    h4.backward(torch.ones_like(h4), retain_graph=True)
    h4.backward(torch.ones_like(h4))

seen = collections.Counter()

def counting(function, *args, **kwargs):
    @functools.wraps(function, ())
    def counted(*args, **kwargs):
        seen[getattr(function, "__name__", type(function).__name__)] += 1
        return function(*args, **kwargs)
    return checkpoint(counted, *args, **kwargs)

run(counting, lambda label, value=None: None, "cpu")
print("f1: due is 3, deepspeed-nonreentrant", seen.get("f1", 0))
sys.exit(seen.get("f1", 0) != 3)
