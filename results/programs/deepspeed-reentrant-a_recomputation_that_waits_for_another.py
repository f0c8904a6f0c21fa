"""deepspeed-reentrant, law a_recomputation_that_waits_for_another. A function may wait, also when it runs again, for another
thread's recomputation, and both draw their own numbers."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2))
    failed = []
    def inner(h): return h.sin()
    def there():
        try: z.backward(torch.ones_like(z), retain_graph=True)
        except Exception as error: failed.append(error.with_traceback(None))
    def f(h):
        thread = threading.Thread(target=there, daemon=True)
        thread.start()
        thread.join()
        return h.cos()
    z = checkpoint(inner, q * 1)
    y = checkpoint(f, p * 1)
    y.backward(y, retain_graph=True)
    if failed: raise failed[0]
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 130.6), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
