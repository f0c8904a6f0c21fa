"""torch-graph, law logging_ends_with_an_error. A backward that raises is logged up to there, and the next one is not."""
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

notes = {}
show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in notes if label.startswith("expected ")]
wrong = [label for label in labels if notes["expected " + label] != notes.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {notes['expected ' + label]}, torch-graph {notes.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
