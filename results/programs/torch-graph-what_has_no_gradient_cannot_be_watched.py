"""torch-graph, law what_has_no_gradient_cannot_be_watched. An unknown mode, a tensor that does not require grad, and what is
no tensor is refused, and nothing is registered."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    calls = []
    note('expected refused', True)
    try:
        tensors = [3]
        graph.register_multi_grad_hook(tensors, calls.append, mode='all')
    except Exception as error:
        named = 'tensor' in str(error)
        note('seen refused', isinstance(error, (TypeError,)) and named)

notes = {}
show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in notes if label.startswith("expected ")]
wrong = [label for label in labels if notes["expected " + label] != notes.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {notes['expected ' + label]}, torch-graph {notes.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
