"""torch-remat, law hooks_see_repeated_inputs_once. A tensor that is passed to a region several times is saved once for it."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2, a3):
        h4 = a2 * a3
        return h4
    h5 = checkpoint(f1, p0, p0)
    end = h5 * p0
    note('saved', [p0, h5, p0])

seen = []

def note(label, value=None):
    if label == "saved":
        due, packed = (collections.Counter(x.untyped_storage()._cdata for x in tensors) for tensors in (value, seen))
        print(f"hooks see: due {due.total()}, torch-remat {packed.total()}, missing {(due - packed).total()}")
        sys.exit(bool(due - packed or packed - due))

with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
    run(checkpoint, note, "cpu")
