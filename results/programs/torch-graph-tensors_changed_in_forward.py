"""torch-graph, law tensors_changed_in_forward. Tensors that forward changes in place after they were saved give the
gradients of the values that were saved."""
import os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(3, 3, dtype=torch.bfloat16, device=device).t().requires_grad_()
    x0 = torch.randn(3, 3, dtype=torch.bfloat16, device=device).t().requires_grad_()
    with graph.allow_mutation_on_saved_tensors():
        def f1(a2):
            h4 = torch.sin(torch.tanh(p0))
            h5 = torch.sub(h4, h4, alpha=2)
            h6 = h5 + torch.sin(h5[1:]).sum()
            h7 = h6 + h4.detach()
            h8 = h7[torch.arange(len(h7), device=device).flip(0)]
            h5.mul_(0.5)
            h13 = torch.sin(torch.sin(torch.sin(h8 + torch.tanh(h8[3:,]).sum())))
            return h13
        h14 = (lambda function, *args, **kwargs: function(*args, **kwargs))(f1, x0)
        h14.backward(torch.ones_like(h14), retain_graph=True)
        note('gradients 1', [p0.grad])
plain = types.SimpleNamespace(**vars(torch.autograd.graph) | {
    "allow_mutation_on_saved_tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().clone(), lambda x: x)})
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, graph):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}")
sys.exit(len(wrong) > 0)
