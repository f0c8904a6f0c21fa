"""torch-graph, law one_backward_alone_is_logged. Each node that the backward executes is logged once with shape and dtype of
its gradients, and no other backward is."""
import os, sys, unittest.mock
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from contextlib import nullcontext
from torch.autograd import graph
graph.logged_backward = lambda *outputs: nullcontext()

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 3, dtype=torch.float64, device=device, requires_grad=True)
    y, due = (p, [(64,)])
    loss = y.sum()
    inside, elsewhere = ([], [])
    def keeping(lines):
        return unittest.mock.patch.object(graph.log, 'handle', lambda record: lines.append(record.getMessage()))
    def backward(output, lines):
        with keeping(lines):
            output.backward(retain_graph=True)
    graph.log.setLevel('DEBUG')
    backward(loss, elsewhere)
    note('expected elsewhere', 0)
    note('seen elsewhere', len(elsewhere))

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
