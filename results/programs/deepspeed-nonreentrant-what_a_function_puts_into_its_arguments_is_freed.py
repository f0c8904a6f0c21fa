"""deepspeed-nonreentrant, law what_a_function_puts_into_its_arguments_is_freed. A tensor that the function puts into a
container that it is passed is freed with that, before any backward."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

from dataclasses import dataclass
def run(checkpoint, note, device):
    torch.manual_seed(0)
    @dataclass
    class Box:
        scale: float
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def put(box, value): box.value = value
    def f(h, box):
        h = h.sin()
        put(box, h)
        return h.exp()
    box = {'dataclass': Box(2.0)}['dataclass']
    y = checkpoint(f, p, box)
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
    note("end")
print("end: due is 0, deepspeed-nonreentrant", seen.get("end", 0))
sys.exit(seen.get("end", 0) != 0)
