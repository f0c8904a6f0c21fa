"""torch-compile, law a_leaf_at_depth_d_runs_d_plus_one_times. What lies below d regions runs d + 1 times: in forward, and
once for each of these regions."""
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
    x = torch.randn(2, 2, device=device, requires_grad=True)
    def level(number):
        def function(h): return h.sin()
        function.__name__ = f'level {number}'
        return function
    y = checkpoint(level(1), x)
    y.backward(torch.ones_like(y))
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
for label, number in {'level 1': 2}.items(): print(f'{label}: due is {number}, torch-compile {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'level 1': 2}.items())))
