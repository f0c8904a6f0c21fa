"""torch-nonreentrant, law what_higher_order_operators_write. A saved tensor that a branch of a torch.cond or the like
changes in place makes no wrong gradient."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

from torch._higher_order_ops.wrap import wrap
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    table = torch.ones(2, 2, device=device, dtype=torch.float64)
    def write(t): return t.mul_(2).clone()
    def call(t): wrap(write, t)
    def inner(h):
        t = table
        call(t)
        return (h * t).exp()
    def outer(h): return inner(h)
    y = checkpoint(outer, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
