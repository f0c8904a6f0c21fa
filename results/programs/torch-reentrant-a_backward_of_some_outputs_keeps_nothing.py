"""torch-reentrant, law a_backward_of_some_outputs_keeps_nothing. After a backward of some outputs, and of others later on,
what was recomputed but not needed is gone."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(2)
    p1 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    x0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        return torch.cos(a2)
    h4 = checkpoint(f1, x0)
    def f5(a6, a7):
        h8 = torch.cos(a6)
        h9 = torch.cos(h8)
        return ((h9 + a7), h9, h8)
    f5_value = checkpoint(f5, h4, p1)
    graph1 = (h4, f5_value[0], f5_value[1], f5_value[2])
    torch.autograd.backward([graph1[3]], [torch.ones_like(graph1[3])])
    note('gradients 2', [p1.grad])
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
