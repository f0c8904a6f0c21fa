"""deepspeed-nonreentrant, law every_backward_recomputes_anew. Each backward over a retained graph calls every function as
often as the first one did."""
import collections, functools, inspect, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    h4 = checkpoint(f1, p0)
    h4.backward(torch.ones_like(h4), retain_graph=True)
    h4.backward(torch.ones_like(h4))

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
def counting(function, *args, **kwargs):
    return checkpoint(counted(function, names), *args, **kwargs)
run(counting, lambda label, value=None: None, 'cpu')
seen = collections.Counter(names)
for label, number in {'f1': 3}.items():
    print(f'{label}: due is {number}, deepspeed-nonreentrant {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'f1': 3}.items())))
