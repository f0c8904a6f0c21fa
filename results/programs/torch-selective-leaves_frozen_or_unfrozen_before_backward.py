"""torch-selective, law leaves_frozen_or_unfrozen_before_backward. A leaf that is frozen or unfrozen between forward and
backward gives no wrong gradient, to itself or to others."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
checkpoint = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, device=device, requires_grad=True)
    p = torch.randn(2, 2, device=device, requires_grad=False)
    def inner(h, q):
        h = (h * q).sin()
        return (h, h.cos())
    given = x * 1
    y, aside = checkpoint(inner, given, p)
    p.requires_grad_(True)
    y.backward(torch.ones_like(y))
    note('gradients 0', [x.grad])

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-selective {seen.get(label)}")
sys.exit(len(wrong) > 0)
