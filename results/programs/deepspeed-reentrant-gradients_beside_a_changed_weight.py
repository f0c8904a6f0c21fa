"""deepspeed-reentrant, law gradients_beside_a_changed_weight. When a saved weight was changed in place, gradients that do
not need it are plain's too, or there is an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x, p, q = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(3))
    def region(level):
        def f(h): return (h * p).sin()
        return f
    def outer(h): return region(0)(h) * q
    y = checkpoint(outer, x * 1)
    with torch.no_grad(): {'p': p}['p'].mul_(2)
    y.backward(torch.ones_like(y))
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 45.8), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
