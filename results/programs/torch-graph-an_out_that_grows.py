"""torch-graph, law an_out_that_grows. An out= argument that is given another size, and so reaches what was saved, gives the
gradients of what was there."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, dtype=torch.float64, device=device, requires_grad=True)
    base = torch.rand(6, dtype=torch.float64, device=device)
    note('expected gradient', base[1:3].clone())
    with graph.allow_mutation_on_saved_tensors():
        y = p * base[1:3]
        torch.neg(torch.ones(3, dtype=torch.float64, device=device), out=base[:1])
        note('seen gradient', torch.autograd.grad(y, p, torch.ones_like(y))[0])

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
