"""plain, law hooks_see_the_outermost_inputs_alone. Hooks on saved tensors see what is saved outside regions and each input
of the outermost ones, nothing else."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    c0 = torch.randn(2, 2, dtype=torch.float64, device=device)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2, a3):
        h4 = torch.sin(a2)
        return h4
    h5 = checkpoint(f1, p0, c0)
    end = h5 * p0
    note('saved', [c0, h5, p0])

seen = []

def note(label, value=None):
    if label == "saved":
        due, packed = (collections.Counter(x.untyped_storage()._cdata for x in tensors) for tensors in (value, seen))
        print(f"tensors that hooks are to see: {due.total()}; they see {packed.total()}, {(due - packed).total()} are missing")
        sys.exit(bool(due - packed or packed.keys() - due.keys()))

with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
    run(checkpoint, note, "cpu")
