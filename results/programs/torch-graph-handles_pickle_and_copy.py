"""torch-graph, law handles_pickle_and_copy. A handle can be pickled and copied, the hook goes on, and what comes back has a
remove that can be called."""
import os, pickle, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    calls = []
    watched = [p * (index + 1) for index in range(1)]
    handle = graph.register_multi_grad_hook(watched, lambda grads: calls.append(1), mode='all')
    made = pickle.loads(pickle.dumps(handle))

try:
    run(graph, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-graph raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
