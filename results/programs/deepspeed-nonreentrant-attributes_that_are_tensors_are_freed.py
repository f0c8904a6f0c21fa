"""deepspeed-nonreentrant, law attributes_that_are_tensors_are_freed. A tensor that is an attribute of what an inner region
is passed lives no longer than what it is an attribute of."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    def inner(h):
        scale = getattr(h, 'scale', 1.0)
        return (h * scale).sin()
    def outer(h):
        return inner(h).tanh()
    y = checkpoint(outer, p)
    y.backward(torch.ones_like(y), retain_graph=True)
    note('held 0', [y])

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
print("held 0: due is 0, deepspeed-nonreentrant", seen.get("held 0", 0))
sys.exit(seen.get("held 0", 0) != 0)
