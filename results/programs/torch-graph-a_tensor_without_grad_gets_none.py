"""torch-graph, law a_tensor_without_grad_gets_none. A tensor among others that does not require grad gets None, and holds
nothing up."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    a, b = (p * 1, q * 1)
    tensors = [{'a': a, 'constant': p.detach()}[name] for name in ('a', 'constant')]
    calls = []
    graph.register_multi_grad_hook(tensors, lambda grads: calls.append([g for g in grads]))

try:
    run(graph, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-graph raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
