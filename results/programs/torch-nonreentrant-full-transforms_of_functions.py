"""torch-nonreentrant-full, law transforms_of_functions. Under a transform of torch.func, around a region or inside it, a
gradient is plain's or it is refused."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    x = torch.randn(2, 2, device=device)
    def applied(function, h):
        return torch.func.vmap(function)(h)
    def inner(h):
        return h.sin() * p
    def f(h):
        h = inner(h)
        return h.cos()
    y = applied(lambda h: checkpoint(f, h), x)
    y.backward(torch.ones_like(y))

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs):
    return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, torch-nonreentrant-full {seen.get(label)}')
sys.exit(len(wrong) > 0)
