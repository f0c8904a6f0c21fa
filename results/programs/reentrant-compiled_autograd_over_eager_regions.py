"""reentrant, law compiled_autograd_over_eager_regions. A backward that compiled autograd compiles, over a region that ran
eagerly, gives plain's gradients, each time."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.reentrant import checkpoint

from torch._dynamo import config
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 3, device=device, requires_grad=True)
    w = torch.randn(3, 3, device=device, requires_grad=True)
    def f(h): return h * w
    def backward(y): y.backward(torch.ones_like(y))
    def seeded(step):
        torch.manual_seed(1)
        found = [[step() for _ in range(1)][-1]]
    with config.patch(compiled_autograd=True):
        compiled = torch.compile(backward, backend='eager')
        note('seen call', seeded(lambda: compiled(checkpoint(f, p))))
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 139.4), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
