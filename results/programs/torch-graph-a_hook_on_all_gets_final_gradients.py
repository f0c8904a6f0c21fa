"""torch-graph, law a_hook_on_all_gets_final_gradients. In mode "all" the hook is called once a backward, with the gradients
of autograd.grad, None where there is none."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q, unused = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    a = p * q
    b = a.sin() + p
    c = a.exp()
    d = b * c
    named = {'d': d}
    total = d
    one = torch.ones_like(total)
    watched = [named[name] for name in ('d',)]
    gradients = torch.autograd.grad(total, watched, one, retain_graph=True, allow_unused=True)
    due = [grad for tensor, grad in zip(watched, gradients, strict=True)]
    calls = []
    note('expected calls', [due] * 1)
    graph.register_multi_grad_hook(watched, lambda grads: calls.append([g for g in grads]))
    total.backward(one, retain_graph=True)
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
