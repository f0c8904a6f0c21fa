"""deepspeed-nonreentrant, law a_request_for_some_gradients_keeps_nothing. After gradients of some leaves were asked for,
what was recomputed but not needed is gone."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    p1 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    x0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, p1, x0, ))
    def forward():
        def f1(a2):
            h3 = torch.sin(a2)
            h8 = torch.sin(checkpoint(torch.sin, h3))
            h9 = torch.sin(h8)
            return (h9, h8)
        return (checkpoint(f1, x0)[1],)
    note('held 1', [forward()])
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
