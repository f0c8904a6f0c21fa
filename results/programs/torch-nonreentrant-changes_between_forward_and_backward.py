"""torch-nonreentrant, law changes_between_forward_and_backward. A tensor changed in place after forward gives an error where
plain raises, and never a wrong gradient."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(box3):
        a2 = box3[0]
        h4 = torch.sin(a2)
        return h4
    h5 = checkpoint(f1, [x0])
    with torch.no_grad(): x0.mul_(0.5)
    h5.backward(torch.ones_like(h5))

def observe(checkpoint):
    seen = {}
    show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
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
    print(f"{label}: plain {expected.get(label)}, torch-nonreentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
