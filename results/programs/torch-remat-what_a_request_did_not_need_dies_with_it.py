"""torch-remat, law what_a_request_did_not_need_dies_with_it. A recomputed tensor that belongs to another input than the one
asked about is gone when backward ends."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    q = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p, q))
    def f(a, b):
        for _ in range(2):
            a, b = (a.sin(), b.cos())
        return a * b
    y = checkpoint(f, p, q)
    y.backward(torch.ones_like(y), retain_graph=True, inputs=[q])
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
print("held 0: due is 0, torch-remat", seen.get("held 0", 0))
sys.exit(seen.get("held 0", 0) != 0)
