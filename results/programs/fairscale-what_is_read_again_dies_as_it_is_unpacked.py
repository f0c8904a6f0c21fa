"""fairscale, law what_is_read_again_dies_as_it_is_unpacked. What is brought back for a second reading within one backward
dies with its node, and nothing else comes with it."""
import gc, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def sines(h, label, count):
        for index in range(count):
            h = h.sin()
            if h.requires_grad: h.register_hook(lambda grad, index=index: note(f'due {label} {index}'))
        return h
    def inner(h): return sines(h, 'after', 0)
    def outer(h):
        h = sines(h, 'before', 1)
        return inner(h)
    y = checkpoint(outer, p)
    note('forward', y)
    y.backward(torch.ones_like(y), retain_graph=False)
made, seen = {}, {}
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        names = ((f, f.f_globals.get("__name__", "torch.")) for f, _ in traceback.walk_stack(sys._getframe(1)))
        caller = next(f for f, name in names if not name.startswith("torch.") or name == "torch.autograd.graph")
        inside = caller.f_globals is globals() and caller.f_code.co_name != "run"  # a function of a region
        for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(result)):
            made.setdefault(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()), inside)
        return result
def note(label, value=None):
    made.update(dict.fromkeys(made, False) if label in ("forward", "held 1") else {})  # what counts is recomputed
    seen[label] = max(seen.get(label, 0), sum(made[one] and not one.expired() for one in made))
gc.disable()  # what only the collector finds lives too long
with Watch(): run(checkpoint, note, "cpu")
print("due before 0: due is at most 0, fairscale", seen.get("due before 0", 0))
sys.exit(seen.get("due before 0", 0) > 0)
