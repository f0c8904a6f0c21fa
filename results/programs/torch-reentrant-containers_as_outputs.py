"""torch-reentrant, law containers_as_outputs. A result in containers comes back in containers of the same types, and carries
gradients."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        h4 = torch.sin(h3)
        def f5(a6):
            h7 = torch.sin(a6)
            return [h7]
        f5_value = checkpoint(f5, h4)
        note('f5 returned', f5_value)
    f1_value = checkpoint(f1, p0)

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 25.99 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 25.99 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
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
    print(f"{label}: plain {expected.get(label)}, torch-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
