"""deepspeed-reentrant, law reading_saved_tensors_again_recomputes_once. All that a node has saved is there after one
recomputation, each time that it is read within a backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors): return sum(tensors)
        @staticmethod
        def backward(ctx, grad): _ = 0
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def sines(h, label, count): return h
    def inner(h):
        h = Reads.apply(*((number + 1) * h for number in range(1)))
        return sines(h, 'after', 0)
    def outer(h): return inner(h)
    y = checkpoint(outer, p)
    for turn in range(2): y.backward(torch.ones_like(y), retain_graph=turn < 1)
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 117.4 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 117.4 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
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
