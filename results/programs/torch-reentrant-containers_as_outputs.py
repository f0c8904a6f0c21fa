"""torch-reentrant, law containers_as_outputs. A result in containers comes back in containers of the same types, and carries
gradients."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(2)
    x0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = a2 @ a2
        h4 = h3 @ a2
        h5 = h4 @ h4
        return {'deep': [(h5,)]}
    f1_value = checkpoint(f1, x0)
    note('f1 returned', f1_value)

def observe(checkpoint):
    seen = {}
    show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
    note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
    try:
        run(checkpoint, note, "cpu")
    except Exception as error:
        seen["error"] = print("error:", repr(error)) or "raised"
    return seen

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
expected, seen = observe(plain), observe(checkpoint)
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
