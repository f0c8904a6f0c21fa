"""torch-reentrant, law missing_tensors_are_reported_in_any_case. With determinism_check="none" a recomputation that does not
bring a tensor that is needed is still an error."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)
checkpoint = functools.partial(checkpoint, determinism_check='none')

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    recomputing = []
    def inner(h):
        changed = 'fewer' if recomputing else ''
        if changed == 'fewer':
            return h
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
