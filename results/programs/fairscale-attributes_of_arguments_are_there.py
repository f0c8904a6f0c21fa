"""fairscale, law attributes_of_arguments_are_there. A Python attribute of an argument, a tensor or not, is there in the
recomputation too, and outputs keep theirs."""
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
    p = torch.nn.Parameter(torch.randn(2, 2, device=device))
    q = torch.randn(2, 2, device=device, requires_grad=True)
    x = {'parameter': p}['parameter']
    x.scale = q
    def outer(a):
        y = (lambda a: (a * p).sin() * getattr(a, 'scale', 1.0))(a).cos()
        return y
    y = checkpoint(outer, x)
    y.backward(torch.ones_like(y))
    note('gradients 0', [q.grad])
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
for label in wrong: print(f"{label}: plain {expected.get(label)}, fairscale {seen.get(label)}")
sys.exit(len(wrong) > 0)
