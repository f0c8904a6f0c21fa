"""torch-graph, law an_edge_is_found_in_any_mode. An edge that is asked for under no_grad or in inference_mode is the
tensor's, for a leaf too."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, dtype=torch.float64, device=device, requires_grad=True)
    t = p
    with {'inference_mode': torch.inference_mode}['inference_mode']():
        found = graph.get_gradient_edge(t)

try:
    run(graph, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-graph raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
