"""torch-graph, law counts_of_clones_are_exact_through_views. Each saved tensor or result that is changed, also through a
view, while a graph needs it is cloned once, nothing else."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    leaves = [torch.rand(4, 3, device=device, requires_grad=True) for _ in range(2)]
    graphs, versions, cloned = ([], [0], set())
    seen, expected = ([], [])
    with graph.allow_mutation_on_saved_tensors() as kept:
        for event, which in (('result', 0),):
            x = leaves[which]
            y = (x + 0).exp()
            y = None
            alive = {(one[1],) for one in graphs if one[1] is not None}
            results = sum((one[1] is None for one in graphs))
            expected.append((event, len(cloned), len(alive - cloned) + results))
            seen.append((event, len(getattr(kept, 'cloned', ())), len(getattr(kept, 'original', ()))))
    note('expected clones and originals', expected)
    note('seen clones and originals', seen)

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
