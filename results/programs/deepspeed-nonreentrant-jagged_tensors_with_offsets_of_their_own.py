"""deepspeed-nonreentrant, law jagged_tensors_with_offsets_of_their_own. Nested tensors of jagged layout, of which each run
makes offsets of its own, give plain's gradients or an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    parts = [torch.randn(count, 2, device=device, requires_grad=True) for count in (1,)]
    def make(parts):
        return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)
    def outer(*given):
        h = make(given)
        return torch.nested.to_padded_tensor(h, 0.0).exp()
    y = checkpoint(outer, *parts)
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
