"""torch-graph, law a_change_that_the_context_does_not_see. A saved tensor that another thread changes, and a clone that
backward changes, is refused; saved again, it is right."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

from concurrent.futures import ThreadPoolExecutor

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.rand(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    function = torch.sin
    with graph.allow_mutation_on_saved_tensors():
        x = p * 1
        y = function(x)
        t = x.detach()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(t.mul_, 2).result()
        note('expected end', 'refused')
        try:
            y.sum().backward()
            note('seen end', 'a value')
        except RuntimeError:
            note('seen end', 'refused')

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
