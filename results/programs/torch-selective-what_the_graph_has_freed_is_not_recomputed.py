"""torch-selective, law what_the_graph_has_freed_is_not_recomputed. What one backward has freed is not wanted by the next,
whose recomputation stops without it (rules 5 and 6)."""
import collections, functools, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 2, device=device, requires_grad=True)
    def both(x):
        left_end = torch.sin(x)
        right_end = torch.sin(x)
        return (left_end, right_end)
    both_value = checkpoint(both, x)
    left_out = both_value[0]
    right_out = both_value[1]
    right_out.backward(torch.ones_like(right_out))
    left_out.backward(torch.ones_like(left_out))
def caller(run):
    frames = ((f, f.f_globals.get('__name__', 'torch.')) for f, _ in traceback.walk_stack(sys._getframe(3)))
    frame = next((f for f, name in frames if not name.startswith('torch.') or name == 'torch.autograd.graph'))
    return frame.f_code.co_name if frame.f_globals is run.__globals__ else ''
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    ignore_compile_internals = classmethod(lambda cls: True)
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.see(func, (result := func(*args, **kwargs or {}))) or result
seen = collections.Counter()
def see(func, result): seen[func.overloadpacket.__name__] += caller(run) != ''
Watch.see = staticmethod(see)
with Watch(): run(checkpoint, lambda label, value=None: None, 'cpu')
for label, number in {'sin': 3}.items(): print(f'{label}: due is {number}, torch-selective {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'sin': 3}.items())))
