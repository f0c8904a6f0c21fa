"""torch-graph, law versions_of_tensors_alone. What is no tensor has no version: it is refused, and no version is changed, of
those beside it either."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, device=device)
    before = x._version
    try:
        graph.increment_version([x, 3])
    except Exception as error:
        note('seen refused', isinstance(error, (TypeError,)) and 'tensor' in str(error).lower())
    note('expected version', before)
    note('seen version', x._version)

notes = {}
show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in notes if label.startswith("expected ")]
wrong = [label for label in labels if notes["expected " + label] != notes.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {notes['expected ' + label]}, torch-graph {notes.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
