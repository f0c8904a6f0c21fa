"""deepspeed-nonreentrant, law backward_of_a_region_that_is_under_way. What a region has computed so far may go backward on
another thread while the region's forward is under way."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    made, failed = ([], [])
    def backward():
        try: made[0].backward(torch.ones_like(made[0]), retain_graph=True)
        except Exception as error: failed.append(error.with_traceback(None))
    def f(h):
        h = h.sin()
        made.append(h)
        if len(made) == 1:
            thread = threading.Thread(target=backward, daemon=True)
            thread.start()
            thread.join()
        return h.exp() * p
    held = [checkpoint(f, p)]
    if failed: raise failed[0]
    note('gradients 0', [p.grad])
    note('forward', held)
    held[0].backward(torch.ones_like(held[0]))
    note('gradients 1', [p.grad])
    held.clear()
    made.clear()
    note('empty', [])
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
