"""torch-graph, law a_backward_inside_another_is_kept_apart. A backward that runs inside of another, in the hook or between
its gradients, has a call of its own."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q, r = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    tensors = [p, q]
    calls = []
    def one():
        with torch.enable_grad():
            return sum((tensors[i].exp().sum() for i in (0,)))
    def hook(grads):
        calls.append([g for g in grads])
    late = q.cos()
    loss = late.sum() + p.cos().sum()
    expected = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    inner = torch.autograd.grad(one(), tensors, allow_unused=True)
    due = [list(expected), list(inner)]
    note('expected calls', due[::-1])
    graph.register_multi_grad_hook(tensors, hook, mode='all')
    late.register_hook(lambda grad: one().backward())
    loss.backward()
    note('seen calls', calls)

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
