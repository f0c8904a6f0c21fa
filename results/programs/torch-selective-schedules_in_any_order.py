"""torch-selective, law schedules_in_any_order. Forward, backward of any kind, errors and drops in any order give plain's
gradients, and keep nothing."""
import functools, gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
checkpoint = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, ))
    def f1(a2):
        h4 = torch.sin((a2 @ a2))
        return h4
    h5 = checkpoint(f1, p0)
    graph1 = (h5,)
    note('held 1', [graph1])
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
print("held 1: due is 0, torch-selective", seen.get("held 1", 0))
sys.exit(seen.get("held 1", 0) != 0)
