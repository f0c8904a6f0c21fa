"""deepspeed-nonreentrant, law an_error_in_recomputation_keeps_nothing. After an error or an interrupt in a recomputation
nothing is alive, and a retry gives plain's gradients."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    c0 = torch.randn(3, 3, dtype=torch.float64, device=device)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (c0, p0, ))
    def f1(a2, a3):
        h4 = a2 @ a2
        f5 = torch.cos
        h9 = torch.cos(checkpoint(f5, h4))
        return torch.sin(h9)
    h11 = checkpoint(f1, p0, c0)
    note('held 1', [(h11,)])

made, leaves, seen = set(), [], {}

def storages(tree):
    tensors = [x for x in torch.utils._pytree.tree_leaves(tree) if torch.is_tensor(x) and x.dtype != torch.uint8 and x.numel()]
    return {torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()) for x in tensors}

class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return made.update(storages(result := func(*args, **(kwargs or {})))) or result

def note(label, value=None):
    leaves.extend(value if label == "leaves" else ())
    seen[label] = sum(not one.expired() for one in made - storages([value, leaves, [x.grad for x in leaves]]))

gc.disable()  # what only the collector finds lives too long
with Watch():
    run(checkpoint, note, "cpu")
print("held 1: due is 0, deepspeed-nonreentrant", seen.get("held 1", 0))
sys.exit(seen.get("held 1", 0) != 0)
