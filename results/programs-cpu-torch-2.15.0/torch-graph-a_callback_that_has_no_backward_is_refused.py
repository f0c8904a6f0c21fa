"""torch-graph, law a_callback_that_has_no_backward_is_refused. A callback is refused outside of a backward or if it cannot
be called, and not called if its backward raises."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, device=device, requires_grad=True)
    order = []
    def hook(grad):
        try:
            graph.queue_callback(3)
        except TypeError:
            order.append('refused')
    note('expected order', {'not callable': ['refused', 'after']}.get('not callable', ['after']))
    handle = p.register_hook(hook)
    try:
        p.sin().sum().backward()
    except KeyError:
        order.append('failed')
    except TypeError:
        order.append('failed too late')
    order.append('after')
    note('seen order', order)

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
