"""torch-remat, law hooks_see_inputs_in_containers. A tensor inside a container is saved like one that is passed by itself."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(box3):
        a2 = box3[0]
        h4 = a2 * a2
        return h4
    h5 = checkpoint(f1, {0: p0})
    end = h5 * p0
    note('saved', [p0, h5, p0])

seen = []

def note(label, value=None):
    if label == "saved":
        due, packed = (collections.Counter(x.untyped_storage()._cdata for x in tensors) for tensors in (value, seen))
        print(f"hooks see: due {due.total()}, torch-remat {packed.total()}, missing {(due - packed).total()}")
        sys.exit(bool(due - packed or packed.keys() - due.keys()))

with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
    run(checkpoint, note, "cpu")
