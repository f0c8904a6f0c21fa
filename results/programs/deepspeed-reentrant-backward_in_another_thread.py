"""deepspeed-reentrant, law backward_in_another_thread. Forward and backward may run in different threads: gradients are
plain's, and all is freed."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def do(call, there):
        box = []
        def work():
            try: box.append(call())
            except Exception as error: box.append(error.with_traceback(None))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        value = box.pop()
        if isinstance(value, Exception): raise value
        return value
    def outer(h): return checkpoint(lambda x: x.sin().cos(), h.exp()).tanh()
    held = [do(lambda: checkpoint(outer, p), True)]
    for turn in range(2): do(lambda: held[0].backward(torch.ones_like(held[0]), retain_graph=True), True)
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 48.57), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
