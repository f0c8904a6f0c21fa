"""deepspeed-nonreentrant, law other_saved_tensors_are_reported. A recomputation that saves fewer tensors, or one of another
shape, dtype or device, is an error each time."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    recomputing = []
    def inner(h):
        changed = 'shape' if recomputing else ''
        c = torch.full((1,) if changed == 'shape' else (2,), 3.0 if changed else 1.0, device=device, dtype=h.dtype)
        h = h * c
        return h.exp().sin()
    def outer(h):
        return inner(h)
    y = checkpoint(outer, p * 1)
    recomputing.append(True)
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])

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
