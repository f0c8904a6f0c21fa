"""torch-graph, law a_backward_of_several_outputs_is_logged. Of a backward of several outputs, tensors or edges, the nodes of
all of them are logged, each once."""
import os, sys, unittest.mock
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from contextlib import nullcontext
from torch.autograd import graph
graph.logged_backward = lambda *outputs: nullcontext()

def run(graph, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    outputs = list(p.sin().unbind())
    marked = [graph.get_gradient_edge(t) for t, form in zip(outputs, ('edge', 'edge'), strict=True)]
    lines = []
    graph.log.setLevel('DEBUG')
    keeping = unittest.mock.patch.object(graph.log, 'handle', lambda record: lines.append(record.getMessage()))
    with keeping, graph.logged_backward(*marked):
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
    names = ('UnbindBackward',)
    note('expected nodes', sorted(names))
    note('seen nodes', sorted((name for line in lines for name in names if name in line)))

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
