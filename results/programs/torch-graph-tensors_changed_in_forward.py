"""torch-graph, law tensors_changed_in_forward. Tensors that forward changes in place after they were saved give the
gradients of the values that were saved."""
import os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.bfloat16, device=device).requires_grad_()
    x0 = torch.randn(2, 2, dtype=torch.bfloat16, device=device).requires_grad_()
    with graph.allow_mutation_on_saved_tensors():
        def f1(a2):
            h3 = torch.sin(a2)
        def f7(a8):
            h9 = torch.sin(p0)
            h10 = h9 + torch.sin(h9[1:]).sum()
            h9.mul_(0.5)
            return torch.sin(torch.sin(h10))
        h13 = checkpoint(f7, checkpoint(f1, x0))
        h13.backward(torch.ones_like(h13))
        note('gradients 0', [p0.grad])
def observe(graph):
    seen = {}
    show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
    note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
    try:
        run(graph, note, "cpu")
    except Exception as error:
        seen["error"] = print("error:", repr(error)) or "raised"
    return seen
plain = types.SimpleNamespace(**vars(torch.autograd.graph) | {
    "allow_mutation_on_saved_tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().clone(), lambda x: x)})
expected, seen = observe(plain), observe(graph)
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}")
sys.exit(len(wrong) > 0)
