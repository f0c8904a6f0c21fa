"""deepspeed-reentrant, law a_recomputation_that_waits_for_another. A function may wait, also run again, for a thread that
recomputes itself, and both draw their own numbers."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    dropout = torch.nn.functional.dropout
    p, q = (torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2))
    failed = []
    def inner(h): return dropout(dropout(h, 0.3).sin(), 0.3)
    def there():
        try: z.backward(torch.ones_like(z), retain_graph=True)
        except Exception as error: failed.append(error.with_traceback(None))
    def f(h):
        thread = threading.Thread(target=there, daemon=True)
        thread.start()
        thread.join()
        return dropout(h.cos(), 0.3)
    z = checkpoint(inner, q * 1)
    y = checkpoint(f, p * 1)
    y.backward(torch.ones_like(y), retain_graph=True)
    if failed: raise failed[0]
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 130.6 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 130.6 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try: run(judged, note, "cpu")
    except Exception as error: notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
