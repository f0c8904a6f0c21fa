"""fairscale, law recomputation_is_hidden_from_hooks. Hooks that are active during backward see nothing of what a
recomputation saves."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs):
    return checkpoint_wrapper(Calling(function))(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        def f4(a5):
            h6 = a5 * a5
            return h6
        h7 = checkpoint(f4, (a2 * a2))
        return h7
    h8 = checkpoint(f1, p0)
    note('forward', (h8,))
    h8.backward(torch.ones_like(h8))

counts = [0]  # in forward, in backward

def pack(x):
    counts[-1] += 1
    return x.detach()

with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
    run(checkpoint, lambda label, value=None: counts.extend([0] * (label == "forward")), "cpu")
seen = dict(zip(("packed in forward", "packed in backward"), counts, strict=False))
print("packed in backward: due is 0, fairscale", seen.get("packed in backward", 0))
sys.exit(seen.get("packed in backward", 0) != 0)
