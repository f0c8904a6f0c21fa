"""deepspeed-nonreentrant, law hooks_that_remove_themselves. A hook that changes a module's arguments or result and removes
itself makes no wrong gradient: plain's, or an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).to(device, torch.float64)
    p = torch.randn(3, 2, device=device, dtype=torch.float64, requires_grad=True)
    one = m
    def after(module, args, y):
        handle.remove()
        return y * 2
    handle = one.register_forward_hook(after)
    def inner(h):
        return m(h.cos()).sin()
    y = checkpoint(inner, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [*(one.grad for one in m.parameters())])

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
