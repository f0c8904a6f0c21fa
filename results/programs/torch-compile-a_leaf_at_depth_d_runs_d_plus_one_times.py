"""torch-compile, law a_leaf_at_depth_d_runs_d_plus_one_times. What lies below d regions runs d + 1 times: in forward, and
once for each of these regions."""
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
print("level 1: due is 2, torch-compile", seen.get("level 1", 0))
sys.exit(seen.get("level 1", 0) != 2)
