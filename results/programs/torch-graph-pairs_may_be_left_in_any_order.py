"""torch-graph, law pairs_may_be_left_in_any_order. Pairs may be exited in any order, as generators do it: the innermost of
those that are still entered is asked."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    asked, due, inside = ([], [], sorted((0, 1)))
    pairs = [graph.saved_tensors_hooks(lambda t, name=name: asked.append(name) or t.detach(), lambda t: t) for name in inside]
    for pair in pairs:
        pair.__enter__()
    y = p
    for name in (0, 1):
        y = y.sin()
        due.append(inside[-1])
        pairs[name].__exit__(None, None, None)
    note('expected asked', due)
    note('seen asked', asked)

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
