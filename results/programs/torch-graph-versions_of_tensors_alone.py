"""torch-graph, law versions_of_tensors_alone. What is no tensor is refused, and no version is changed, not even of tensors
beside it."""
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
        named = any((name in str(error) for name in ('a tensor',)))
    note('expected version', before)
    note('seen version', x._version)

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(graph, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, torch-graph {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
