"""plain, law a_leaf_at_depth_d_runs_d_plus_one_times. What lies below d regions runs d + 1 times: in forward, and once for
each of these regions."""
import collections, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, device=device, requires_grad=True)
    def level(number):
        def function(h):
            return h.sin()
        function.__name__ = f'level {number}'
        return function
    y = checkpoint(level(1), x)
    y.backward(torch.ones_like(y))

seen = collections.Counter()

def counting(function, *args, **kwargs):
    @functools.wraps(function, ())
    def counted(*args, **kwargs):
        seen[getattr(function, "__name__", type(function).__name__)] += 1
        return function(*args, **kwargs)
    return checkpoint(counted, *args, **kwargs)

run(counting, lambda label, value=None: None, "cpu")
print("level 1: due is 2, plain", seen.get("level 1", 0))
sys.exit(seen.get("level 1", 0) != 2)
