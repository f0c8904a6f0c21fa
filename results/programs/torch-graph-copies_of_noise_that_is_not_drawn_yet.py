"""torch-graph, law copies_of_noise_that_is_not_drawn_yet. A copy that a pack hook made of the noise of rrelu, which is drawn
once it is saved, is refused in backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(1, 2, device=device, requires_grad=True)
    note('expected error', 'RuntimeError')
    with graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t):
        y = torch.nn.functional.rrelu(p * 1, training=True, inplace=True).sum()
    try:
        y.backward()
    except RuntimeError as error:
        note('seen error', type(error).__name__)

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
