"""plain, law a_parent_is_recomputed_once_for_all_its_regions. Regions that share inputs make their parent run once more in a
backward, not once for each of them."""
import collections, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x, y = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    def parent(x, y):
        h = torch.sin(x)
        return h * y
    z = checkpoint(parent, x, y)
    z.backward(torch.ones_like(z))

seen = collections.Counter()

def counting(function, *args, **kwargs):
    @functools.wraps(function, ())
    def counted(*args, **kwargs):
        seen[getattr(function, "__name__", type(function).__name__)] += 1
        return function(*args, **kwargs)
    return checkpoint(counted, *args, **kwargs)

run(counting, lambda label, value=None: None, "cpu")
print("parent: due is 2, plain", seen.get("parent", 0))
sys.exit(seen.get("parent", 0) != 2)
