"""torch-remat, law second_derivatives_see_the_same_masks. Differentiating a gradient again recomputes with forward's random
numbers."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = a2 @ a2
        h4 = h3 * torch.rand_like(h3)
        return h4
    h5 = checkpoint(f1, p0)
    gradients = torch.autograd.grad([h5], [p0], [torch.ones_like(h5)], allow_unused=True, create_graph=True)
    note('first order 2', gradients)

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}")
sys.exit(len(wrong) > 0)
