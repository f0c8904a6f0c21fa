"""torch-graph, law noise_that_is_drawn_once_it_is_saved. What an operator, such as rrelu, draws into a buffer that it has
saved is what backward reads; that is no change."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(4, 3, dtype=torch.float64, device=device, requires_grad=True)
    def gradients():
        torch.manual_seed(1)
        x = p * 1
        x = torch.nn.functional.rrelu(x.sin(), training=True, inplace=True)
        return torch.autograd.grad((x * x).sum(), p)
    note('expected gradients', gradients())
    with graph.allow_mutation_on_saved_tensors():
        note('seen gradients', gradients())

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
