"""torch-graph, law a_change_beside_a_saved_view_clones_nothing. A saved view is cloned when a change of its base reaches it,
and not when other elements are changed."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.rand(8, device=device)
    with graph.allow_mutation_on_saved_tensors() as kept:
        x = p.clone()
        w = torch.rand(1, device=device, requires_grad=True)
        y = x[1:2] * w
        x[0:2].zero_()
        overlap = max(1, 0) < min(2, 2)
        note('expected clones', int(overlap))
        note('seen clones', len(getattr(kept, 'cloned', ())))

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
