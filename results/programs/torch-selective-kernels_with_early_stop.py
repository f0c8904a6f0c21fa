"""torch-selective, law kernels_with_early_stop. A recomputation runs exactly the operators up to the last tensor that is
needed (rule 5)."""
import collections, functools, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
checkpoint = functools.partial(checkpoint, use_reentrant=False, context_fn=contexts)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    x0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    h4 = checkpoint(f1, x0)
    def f5(a6, a7):
        h8 = a6 @ a7
        h9 = torch.sin(h8)
        return h9
    h10 = checkpoint(f5, h4, p0)
    h10.backward(torch.ones_like(h10))

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
