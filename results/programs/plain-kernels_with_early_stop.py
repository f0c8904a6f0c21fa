"""plain, law kernels_with_early_stop. A recomputation runs exactly the operators up to the last tensor that is needed (rule
5)."""
import collections, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        def f4(a5):
            h6 = torch.sin(a5)
            return h6
        h7 = checkpoint(f4, h3)
        return h7
    h8 = checkpoint(f1, p0)
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
print("sin: due is 3, plain", seen.get("sin", 0))
sys.exit(seen.get("sin", 0) != 3)
