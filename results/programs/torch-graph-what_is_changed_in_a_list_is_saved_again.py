"""torch-graph, law what_is_changed_in_a_list_is_saved_again. A tensor that is saved, changed by a foreach operator and saved
again gives the gradients of its value at each time."""
import os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q = (torch.rand(3, 3, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    with graph.allow_mutation_on_saved_tensors():
        h = p * 1
        products = [h * q]
        torch._foreach_add_([h], [1.0])
        products.append(h * q)
        torch.autograd.backward(products, [torch.ones_like(product) for product in products])
    note('gradients 0', [q.grad])

plain = types.SimpleNamespace(**vars(torch.autograd.graph) | {
    "allow_mutation_on_saved_tensors": lambda: torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().clone(), lambda x: x)})
show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
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
