"""deepspeed-nonreentrant, law autocast_cache_keeps_gradients. A weight that is read inside and outside of regions under one
autocast gets all its gradients, cached or not."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x, w = (torch.tensor([[1.0, 2.0], [0.0, n]], device=device, requires_grad=True) for n in (1.0, -1.0))
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, cache_enabled=True):
        y = x @ w
        y = checkpoint(lambda h: h @ w, y)
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
