"""deepspeed-reentrant, law containers_that_a_function_changes_around_another_region. What a function changes, and knows by
another name or identity, it finds again, also if it calls a region meanwhile."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    box = {'dict': {1: 3.0}}['dict']
    def take(box): return box.pop(*(1,))
    def f(h, given):
        last = take(given)
        y = (h * len(box)).tanh()
        return y.exp()
    y = checkpoint(f, p, box)
    note('forward', y)
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 125.5), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
