"""torch-graph, law an_undefined_gradient_is_not_the_first. In mode "any" a gradient that a Function leaves undefined does
not count: the hook gets the first that is there."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    class Second(torch.autograd.Function):
        @staticmethod
        def forward(ctx, s, t):
            return s * 2
        @staticmethod
        def backward(ctx, grad):
            return (grad * 2, None)
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    tensors = {'a': p * 1, 'b': q * 1}
    loss = Second.apply(tensors['a'], tensors['b']).sum()
    calls = []
    graph.register_multi_grad_hook([tensors[name] for name in ('a', 'b')], lambda grad: calls.append(grad), mode='any')
    note('expected calls', [torch.full((2, 2), 2.0, device=device)] * 1)
    loss.backward(retain_graph=True)
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
