"""deepspeed-nonreentrant, law calls_with_early_stop. Every region's function is called exactly as often as rules 2, 3 and 5
say."""
import collections, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        def f1_last(f1_inner):
            f1_result = torch.sin(f1_inner)
            return f1_result
        f1_outer = checkpoint(f1_last, h3)
        return f1_outer
    h4 = checkpoint(f1, p0)
    h4.backward(torch.ones_like(h4))

seen = collections.Counter()

def counting(function, *args, **kwargs):
    @functools.wraps(function, ())
    def counted(*args, **kwargs):
        seen[getattr(function, "__name__", type(function).__name__)] += 1
        return function(*args, **kwargs)
    return checkpoint(counted, *args, **kwargs)

run(counting, lambda label, value=None: None, "cpu")
print("f1_last: due is 2, deepspeed-nonreentrant", seen.get("f1_last", 0))
sys.exit(seen.get("f1_last", 0) != 2)
