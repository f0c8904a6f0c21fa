"""torch-selective, law backward_of_one_output_recomputes_what_it_needs. A backward of one output recomputes the regions that
it passes through and those around them alone."""
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
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    def f5(a6):
        h7 = a6 @ a6
        h8 = torch.sin(h7)
        return h8
    h9 = checkpoint(f5, checkpoint(f1, p0))
    torch.autograd.backward([h9], [torch.ones_like(h9)])
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
for label, number in {'mm': 2}.items(): print(f'{label}: due is {number}, torch-selective {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'mm': 2}.items())))
