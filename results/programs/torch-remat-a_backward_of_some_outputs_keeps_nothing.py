"""torch-remat, law a_backward_of_some_outputs_keeps_nothing. After a backward of some outputs, and of others later on, what
was recomputed but not needed is gone."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, ))
    def f1(a2):
        h3 = a2 @ a2
        return ((h3 @ a2), h3)
    f1_value = checkpoint(f1, p0)
    f1_aside = f1_value[1]
    graph1 = (f1_value[0], f1_aside)
    torch.autograd.backward([graph1[1]], [torch.ones_like(graph1[1])], retain_graph=True)
    note('held 2', [graph1])
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
print("held 2: due is 0, torch-remat", seen.get("held 2", 0))
sys.exit(seen.get("held 2", 0) != 0)
