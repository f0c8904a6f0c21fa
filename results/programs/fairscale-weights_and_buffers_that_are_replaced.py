"""fairscale, law weights_and_buffers_that_are_replaced. A weight or buffer that is assigned anew before backward, or is
given other data, makes no wrong gradient."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    def values(): return torch.randn(2, 2, device=device, dtype=torch.float64)
    m = torch.nn.Linear(2, 2).to(device, torch.float64)
    p, v = (values().requires_grad_(), values().requires_grad_())
    def block(h, *given):
        h = m(h)
        return h.sin()
    def outer(h, *given):
        h = block(h, *given)
        return h
    y = checkpoint(outer, p, *[])
    getattr(m, 'weight').data = values()
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 86.66 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 86.66 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try: run(judged, note, "cpu")
    except Exception as error: notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, fairscale {seen.get(label)}")
sys.exit(len(wrong) > 0)
