"""deepspeed-reentrant, law what_is_beside_tensors_in_an_argument. What an argument has beside its registered parts or its
items, such as an attribute that was set later, is there."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

from collections import OrderedDict
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    class Batch:
        def __new__(cls, x): return OrderedDict(x=x)
    def f(h, batch):
        x = batch['x']
        return (h * x * getattr(batch, 'scale', 1.0)).sin().exp()
    batch = Batch(torch.full((2,), 2.0, device=device))
    batch.scale = 3.0
    y = checkpoint(f, p, batch)
    note('forward', y)
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 451.4), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
