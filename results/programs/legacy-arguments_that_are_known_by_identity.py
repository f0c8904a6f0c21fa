"""legacy, law arguments_that_are_known_by_identity. A tensor without a gradient that a function is passed is the same object
each time, also if it has attributes."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.legacy import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    table = p.detach().exp()
    scales = {id(table): 3.0}
    def inner(w, h):
        return (h * w * scales.get(id(w), 1.0)).cos()
    y = checkpoint(inner, table, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])

class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units):
    return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units):
    return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs):
    return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None):
    notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 353.5), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, legacy {seen.get(label)}')
sys.exit(len(wrong) > 0)
