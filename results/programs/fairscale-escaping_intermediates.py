"""fairscale, law escaping_intermediates. A tensor that leaves a region by another way than its result carries gradients into
it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs):
    return checkpoint_wrapper(Calling(function))(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    kept4 = []
    def f1(a2):
        h3 = torch.sin(a2)
        kept4.append(h3)
        return torch.sin(h3)
    h7 = checkpoint(f1, p0) * kept4[0]
    h7.backward(torch.ones_like(h7))
    note('gradients 0', [p0.grad])
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
    print(f"{label}: plain {expected.get(label)}, fairscale {seen.get(label)}")
sys.exit(len(wrong) > 0)
