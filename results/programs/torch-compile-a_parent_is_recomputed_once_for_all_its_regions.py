"""torch-compile, law a_parent_is_recomputed_once_for_all_its_regions. Regions that share inputs make their parent run once
more in a backward, not once for each of them."""
import collections, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling():
        return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

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
print("parent: due is 2, torch-compile", seen.get("parent", 0))
sys.exit(seen.get("parent", 0) != 2)
