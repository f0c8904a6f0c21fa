"""deepspeed-nonreentrant, law containers_that_a_stopped_run_leaves. What a recomputation had put into a container when it
was stopped is freed once its backward is over."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def put(box, value): box.append(value)
    def layer(h, index):
        h = h.sin()
        return h
    def inner(box, index, level): return layer(box.pop(0), index)
    def outer(box):
        for index in range(2): put(box, checkpoint(inner, box, index, 1))
        return box.pop(0)
    box = [p]
    put(box, checkpoint(outer, box))
    y = checkpoint(inner, box, 2, 1)
    note('forward', y)
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
