"""deepspeed-reentrant, law explicit_generators_by_keyword. A torch.Generator that is passed by keyword is replayed, and ends
where plain leaves it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    generator, second = (torch.Generator(device).manual_seed(seed) for seed in (5, 6))
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def f(h, box=None, source=None):
        last = source
        return (h * torch.rand(2, 2, generator=last, device=device)).sin()
    y = p * 1
    y = checkpoint(f, y, source=generator)
    y.backward(torch.ones_like(y), retain_graph=True)
    note('gradients 0', [p.grad])

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 173.3 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 173.3 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
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
    print(f"{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
