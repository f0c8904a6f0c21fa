"""legacy, law copies_of_weights_in_a_functional_call. A model that checkpoints inside, called with copies of its weights,
gets plain's gradients."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.legacy import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(2, device=device, dtype=torch.float64))
        def forward(self, h):
            return checkpoint(lambda h: h * self.weight * self.weight, h)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    m = Model()
    w = m.weight.detach().clone().requires_grad_()
    y = torch.func.functional_call(m, {'weight': w}, (p * 1,))
    y.backward(torch.ones_like(y))
    note('gradients 0', [w.grad])

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 197.2 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 197.2 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, legacy {seen.get(label)}")
sys.exit(len(wrong) > 0)
