"""deepspeed-nonreentrant, law arguments_look_the_same. Type, dtype, requires_grad, is_leaf and layout of arguments, and
which of them are one object, are forward's."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Kind(torch.Tensor): pass
    p = torch.nn.Parameter(torch.randn(2, 2, device=device))
    q = torch.randn(2, 2, device=device, requires_grad=True)
    x = q
    constant = torch.ones(2, 2, device=device)
    special = torch.ones(2, 2, device=device).as_subclass(Kind)
    seen = []
    def look(*tensors):
        same = [[one is other for one in tensors] for other in tensors]
        seen.append(str((same,)))
    def inner(a, b, c, d, e):
        look(a, b, c, d, e)
        return (a * b).sin() * c * d.as_subclass(torch.Tensor) * e
    def outer(a, b, c, d, e):
        y = inner(a, b, c, d, e)
        return y.cos()
    y = checkpoint(outer, x, x, p, special, constant)
    y.backward(torch.ones_like(y))
    note('what the functions saw', str(sorted(set(seen))))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
