"""torch-graph, law statistics_changed_before_backward. Running statistics that batch norm read in eval mode, and changes in
training, give the gradients of what it read."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    norm = torch.nn.BatchNorm1d(2, dtype=torch.float64, device=device).eval()
    note('expected gradients', [torch.autograd.grad((norm(p) ** 2).sum(), p)] * 1)
    with graph.allow_mutation_on_saved_tensors():
        loss = (norm(p) ** 2).sum()
        norm.train()(p.detach() * 3 + 1)
        note('seen gradients', [torch.autograd.grad(loss, p, retain_graph=True) for _ in range(1)])

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
