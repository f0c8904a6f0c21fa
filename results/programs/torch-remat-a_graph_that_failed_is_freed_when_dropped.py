"""torch-remat, law a_graph_that_failed_is_freed_when_dropped. A graph in whose recomputation an error was raised is freed
with its outputs."""
import contextlib, gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

class Planned(ValueError): pass
def run(checkpoint, note, device):
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, ))
    armed = {}
    def f1(a2):
        h3 = a2
        if 'h3' in armed: raise armed.pop('h3')('program')
        return (h3, h3)
    h6, h7 = checkpoint(f1, p0)
    graph1 = (h6, h7, h6 * h7)
    armed['h3'] = Planned
    with contextlib.suppress(Planned): torch.autograd.backward([graph1[2]], [graph1[2]], retain_graph=True)
    del graph1
    note('empty 3', [])
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
with Watch(): run(checkpoint, note, "cpu")
print("empty 3: due is 0, torch-remat", seen.get("empty 3", 0))
sys.exit(seen.get("empty 3", 0) != 0)
