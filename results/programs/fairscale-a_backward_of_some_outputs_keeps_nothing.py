"""fairscale, law a_backward_of_some_outputs_keeps_nothing. After a backward of some outputs, and of others later on, what
was recomputed but not needed is gone."""
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
    p1 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    x0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2, a3):
        h9 = torch.sin(checkpoint((lambda a6: a6 * a6), torch.sin(a2)))
        return ((h9 @ a3), h9)
    f1_value = checkpoint(f1, x0, p1)
    graph1 = (f1_value[0], f1_value[1])
    torch.autograd.backward([graph1[1]], [torch.ones_like(graph1[1])], retain_graph=True)
    note('gradients 2', [p1.grad])
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
