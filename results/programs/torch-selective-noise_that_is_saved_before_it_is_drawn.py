"""torch-selective, law noise_that_is_saved_before_it_is_drawn. Noise comes back as it was also where an operator, such as
rrelu, saves a buffer before it draws into it."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
checkpoint = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = a2 * a2
        h4 = torch.nn.functional.rrelu(h3, training=True)
        return h4
    h5 = checkpoint(f1, p0)
    h5.backward(torch.ones_like(h5))
    note('gradients 0', [p0.grad])

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
