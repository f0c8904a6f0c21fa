"""deepspeed-nonreentrant, law recomputed_tensors_live_no_longer_than_saved_ones. At no node of a retained backward is more
recomputed than plain, which frees, still has of that region."""
import gc, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(2)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = a2 @ a2
        if h3.requires_grad: h3.register_hook(lambda grad: note('due f1 h3'))
        h4 = torch.tanh(h3)
        return (h4 @ h3)
    graph1 = (checkpoint(f1, p0),)
    torch.autograd.backward([graph1[0]], [torch.ones_like(graph1[0])], retain_graph=True)

made, seen = {}, {}

class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        names = ((f, f.f_globals.get("__name__", "torch.")) for f, _ in traceback.walk_stack(sys._getframe(1)))
        caller = next(f for f, name in names if not name.startswith("torch.") or name == "torch.autograd.graph")
        inside = caller.f_globals is globals() and caller.f_code.co_name == 'f1'  # a function of a region
        for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(result)):
            made.setdefault(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()), inside)
        return result

def note(label, value=None):
    made.update(dict.fromkeys(made, False) if label in ("forward", "held 1") else {})  # what counts is recomputed
    seen[label] = max(seen.get(label, 0), sum(made[one] and not one.expired() for one in made))

gc.disable()  # what only the collector finds lives too long
with Watch():
    run(checkpoint, note, "cpu")
print("due f1 h3: due is at most 1, deepspeed-nonreentrant", seen.get("due f1 h3", 0))
sys.exit(seen.get("due f1 h3", 0) > 1)
