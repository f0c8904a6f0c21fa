"""torch-graph, law backward_after_the_context_is_refused. A backward after the context was left, or in another one, is
refused with a RuntimeError that names the context."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.rand(2, 2, device=device, requires_grad=True)
    note('expected error', ['RuntimeError', 'names the context: True'])
    with graph.allow_mutation_on_saved_tensors():
        x = p * 1
        y = x.sin()
    try:
        y.sum().backward()
    except Exception as error:
        named = 'allow_mutation_on_saved_tensors' in str(error)
        note('seen error', [type(error).__name__, f'names the context: {named}'])

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
