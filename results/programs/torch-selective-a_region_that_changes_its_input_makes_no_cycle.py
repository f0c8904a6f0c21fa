"""torch-selective, law a_region_that_changes_its_input_makes_no_cycle. A region that changes its input in place, and may
return it or raise, is freed with its outputs, or refused at once."""
import functools, gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
checkpoint = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    def f(h):
        h.tanh_()
    held = [p * 1]
    held.append(checkpoint(f, held[0]))
    held.clear()
    note('empty', [])
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
print("empty: due is 0, torch-selective", seen.get("empty", 0))
sys.exit(seen.get("empty", 0) != 0)
