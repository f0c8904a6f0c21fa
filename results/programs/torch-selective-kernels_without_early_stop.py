"""torch-selective, law kernels_without_early_stop. With early stop switched off, every recomputation runs all operators of
its region."""
import collections, functools, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
checkpoint = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)
checkpoint = functools.partial(checkpoint, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    h4 = checkpoint(f1, p0)
    def f5(a6):
        h7 = a6 @ a6
        return h7
    h8 = checkpoint(f5, h4)
    h8.backward(torch.ones_like(h8))

seen = collections.Counter()

class Count(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = ((f, f.f_globals.get("__name__", "torch.")) for f, _ in traceback.walk_stack(sys._getframe(1)))
        caller = next(f for f, name in names if not name.startswith("torch.") or name == "torch.autograd.graph")
        seen[func.overloadpacket.__name__] += caller.f_globals is globals()  # what the program calls, and no backward
        return func(*args, **(kwargs or {}))

with Count():
    run(checkpoint, lambda label, value=None: None, "cpu")
print("mm: due is 2, torch-selective", seen.get("mm", 0))
sys.exit(seen.get("mm", 0) != 2)
