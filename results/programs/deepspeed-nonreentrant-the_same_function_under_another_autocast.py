"""deepspeed-nonreentrant, law the_same_function_under_another_autocast. A function that is called once under autocast and
once without gives each call the gradients of its own precision."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 2, device=device, requires_grad=True)
    calls, settings = ([(p,), (p,)], [{}, {}])
    def f(h, *others):
        h = h @ h.T
        return h
    def forward(turn):
        with torch.autocast(torch.device(device).type, torch.bfloat16, **settings[turn]): return checkpoint(f, *calls[turn])
    def backward(turn, y): y.backward(torch.ones_like(y))
    for turn in range(2):
        y = forward(turn)
        backward(turn, y)
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
wrong = [label for label in wrong if label.partition(' ')[0] != 'cost']
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
