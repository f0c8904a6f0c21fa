"""deepspeed-nonreentrant, law an_error_leaves_the_stream_alone. An error in a recomputation leaves the ambient stream alone,
and the next backward draws forward's numbers."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

from contextlib import suppress
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(4, 4, device=device, requires_grad=True)
    kind = {'RuntimeError': RuntimeError}['RuntimeError']
    failing = []
    def inner(h):
        h = torch.nn.functional.dropout(h.sin(), 0.3)
        if failing: raise kind('program')
        return torch.nn.functional.dropout(h.cos(), 0.3)
    def outer(h): return torch.nn.functional.dropout(inner(h), 0.3)
    y = checkpoint(outer, p * 1)
    failing.append(True)
    with suppress(kind): y.backward(torch.ones_like(y), retain_graph=True)
    failing.clear()
    y.backward(torch.ones_like(y))
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
