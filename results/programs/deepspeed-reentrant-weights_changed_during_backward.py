"""deepspeed-reentrant, law weights_changed_during_backward. A weight that a hook changes during backward, as an optimizer in
backward does, gives no wrong gradient."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x, p, q = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(3))
    note('leaves', (p,))
    def step(grad): p.sub_(grad, alpha=0.1)
    def region(level):
        def f(h):
            h = h * p
            return h.sin()
        return f
    y = checkpoint(region(0), x * 1) * q
    q.register_hook(step)
    for number in range(2): y.backward(torch.ones_like(y), retain_graph=True)
class Near(tuple):  # equal but for 45.8 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 45.8 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
def observe(checkpoint):
    leaves, shown = [], []
    def note(label, value=None):
        leaves.extend(value if label == "leaves" else ())
        shown.append([(number, show(leaf.grad)) for number, leaf in enumerate(leaves)])
    try: run(checkpoint, note, "cpu")
    except Exception as error: print("error:", repr(error))
    note("end")
    return shown
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
expected, seen = sum(observe(plain), []), observe(checkpoint)[-1]
due = [f"leaf {number}: {gradient}" for number, gradient in expected]
wrong = [f"leaf {number}: {gradient}" for number, gradient in seen if (number, gradient) not in expected]
print("left behind by deepspeed-reentrant:", *wrong, "which plain never has; it has:", *dict.fromkeys(due), sep="\n  ")
sys.exit(len(wrong) > 0)
