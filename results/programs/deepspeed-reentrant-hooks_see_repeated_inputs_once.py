"""deepspeed-reentrant, law hooks_see_repeated_inputs_once. A tensor that is passed to a region several times is saved once
for it."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2, a3):
        h4 = a2 * a3
        def f5(a6, a7):
            h8 = a6 * a7
            return h8
        h9 = checkpoint(f5, h4, h4)
        return h9
    h10 = checkpoint(f1, p0, p0)
    end = h10 * p0
    note('saved', [p0, h10, p0])

seen = []

def note(label, value=None):
    if label == "saved":
        due, packed = (collections.Counter(x.untyped_storage()._cdata for x in tensors) for tensors in (value, seen))
        print(f"hooks see: due {due.total()}, deepspeed-reentrant {packed.total()}, missing {(due - packed).total()}")
        sys.exit(bool(due - packed or packed - due))

with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
    run(checkpoint, note, "cpu")
