"""torch-graph, law a_sparse_tensor_changed_by_its_values. A saved sparse tensor, compressed or not, that is changed by a
method or through its values gives the right gradients."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True)
    x = torch.tensor([[3.0, 0.0]], dtype=torch.float64, device=device)
    x = x.to_sparse_csr()
    with graph.allow_mutation_on_saved_tensors():
        y = (x @ p).sum()

try:
    run(graph, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-graph raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
