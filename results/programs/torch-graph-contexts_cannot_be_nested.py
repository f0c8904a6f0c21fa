"""torch-graph, law contexts_cannot_be_nested. A context inside of another is refused with a RuntimeError, and the one around
it goes on as before."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.rand(2, 2, device=device, requires_grad=True)
    errors = []
    with graph.allow_mutation_on_saved_tensors():
        x = p * 1
        try:
            with graph.allow_mutation_on_saved_tensors():
                errors.append('nothing')
        except Exception as error:
            errors.append(type(error).__name__)
        y = x.sin()
        note('seen gradients', torch.autograd.grad(y.sum(), p))

try:
    run(graph, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-graph raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
