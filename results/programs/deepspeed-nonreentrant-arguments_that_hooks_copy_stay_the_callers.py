"""deepspeed-nonreentrant, law arguments_that_hooks_copy_stay_the_callers. Under hooks that copy, an argument whose caller
keeps it comes back as itself: ``retain_grad`` and ``is`` say so."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    h = p.exp()
    def inner(a, b):
        return (a * w).sin() * (3 if a is b else b)
    def outer(a):
        return checkpoint(inner, a, h).exp() * w
    y = checkpoint(outer, h)
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
    print(f'{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
