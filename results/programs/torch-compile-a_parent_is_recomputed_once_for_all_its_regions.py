"""torch-compile, law a_parent_is_recomputed_once_for_all_its_regions. Regions that share inputs make their parent run once
more in a backward, not once for each of them."""
import collections, functools, inspect, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs): return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling(): return region(function, *args, **kwargs)  # belongs to what is being compiled
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
def region_name(function):
    function = inspect.unwrap(function)
    return getattr(function, '__name__', type(function).__name__)
def counted(function, names):
    @functools.wraps(function)
    def called(*args, **kwargs):
        names.append(region_name(function))
        return function(*args, **kwargs)
    return called
names = []
def counting(function, *args, **kwargs): return checkpoint(counted(function, names), *args, **kwargs)
run(counting, lambda label, value=None: None, 'cpu')
seen = collections.Counter(names)
for label, number in {'parent': 2}.items(): print(f'{label}: due is {number}, torch-compile {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'parent': 2}.items())))
