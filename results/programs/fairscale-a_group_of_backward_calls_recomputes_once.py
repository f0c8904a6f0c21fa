"""fairscale, law a_group_of_backward_calls_recomputes_once. Backward calls of one GraphExecGroup, which need different parts
of a region, recompute it once for all of them."""
import collections, functools, inspect, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

from torch.utils.checkpoint import GraphExecGroup
def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, device=device, requires_grad=True)
    def inner(h): return tuple(((h * number).sin() for number in range(1, 3)))
    def outer(h): return inner(h)
    group = GraphExecGroup()
    ys = checkpoint(outer, x)
    with group:
        for turn, y in enumerate(ys): y.backward(torch.ones_like(y), retain_graph=True)
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
for label, number in {'outer': 2}.items(): print(f'{label}: due is at most {number}, fairscale {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'outer': 2}.items())))
