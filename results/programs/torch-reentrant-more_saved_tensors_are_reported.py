"""torch-reentrant, law more_saved_tensors_are_reported. A recomputation that runs to its end and saves more tensors than
forward did is an error."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)
checkpoint = functools.partial(checkpoint, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    recomputing = []
    def inner(h):
        changed = 'more' if recomputing else ''
        if changed == 'more':
            h = h.tanh()
        c = torch.full((1,), 3.0, device=device, dtype=h.dtype)
        h = h * c
        return h.exp().sin()
    def outer(h):
        return inner(h)
    y = checkpoint(outer, p * 1)
    recomputing.append(True)
    y.backward(torch.ones_like(y))

try:
    run(checkpoint, lambda label, value=None: None, 'cpu')
except Exception as error:
    print('expected an error, and there is one:', repr(error))
    sys.exit(0)
print('expected an error; torch-reentrant raised none')
sys.exit(1)
