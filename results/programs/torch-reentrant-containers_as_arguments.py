"""torch-reentrant, law containers_as_arguments. Tensors inside lists, tuples, dicts, namedtuples and dataclasses get plain's
gradients."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(2)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(box4):
        a2 = box4['deep'][1][0]
        a3 = box4['deep'][1][1]
        h5 = a2 * a3
        return h5
    h6 = checkpoint(f1, {'deep': [None, (p0, p0,)]})
    h7 = h6 * p0
    h7.backward(torch.ones_like(h7))
    note('gradients 0', [p0.grad])

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
