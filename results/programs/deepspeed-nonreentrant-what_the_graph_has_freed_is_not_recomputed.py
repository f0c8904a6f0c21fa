"""deepspeed-nonreentrant, law what_the_graph_has_freed_is_not_recomputed. What one backward has freed is not wanted by the
next, whose recomputation stops without it (rules 5 and 6)."""
import collections, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, device=device, requires_grad=True)
    def both(x):
        left_end = torch.sin(x)
        right_end = torch.sin(x)
        return left_end, right_end
    both_value = checkpoint(both, x)
    right_out = both_value[1]
    right_out.backward(torch.ones_like(right_out))

seen = collections.Counter()

class Count(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        names = ((f, f.f_globals.get("__name__", "torch.")) for f, _ in traceback.walk_stack(sys._getframe(1)))
        caller = next(f for f, name in names if not name.startswith("torch.") or name == "torch.autograd.graph")
        seen[func.overloadpacket.__name__] += caller.f_globals is globals()  # what the program calls, and no backward
        return func(*args, **(kwargs or {}))

with Count():
    run(checkpoint, lambda label, value=None: None, "cpu")
print("sin: due is 3, deepspeed-nonreentrant", seen.get("sin", 0))
sys.exit(seen.get("sin", 0) != 3)
