"""deepspeed-nonreentrant, law default_dtype_is_forwards. A recomputation runs under the default dtype of its own forward,
and backward leaves its own in force."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True, dtype=torch.float32)
    def inner(h):
        return h * torch.full((2,), 0.1, device=device)
    def outer(h):
        return inner(h).sin()
    torch.set_default_dtype(getattr(torch, 'float32'))
    y = checkpoint(outer, p * 1)
    torch.set_default_dtype(getattr(torch, 'float64'))
    for turn in range(1):
        y.backward(torch.ones_like(y), retain_graph=turn < 0)
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
