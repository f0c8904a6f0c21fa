"""deepspeed-reentrant, law kernels_with_early_stop. A recomputation runs exactly the operators up to the last tensor that is
needed (rule 5)."""
import collections, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0,))
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    h4 = checkpoint(f1, p0)
    note('forward', (h4,))
    h4.backward(torch.ones_like(h4))
    note('gradients 0', [p0.grad])

def caller(run):
    frames = ((f, f.f_globals.get('__name__', 'torch.')) for f, _ in traceback.walk_stack(sys._getframe(3)))
    frame = next((f for f, name in frames if not name.startswith('torch.') or name == 'torch.autograd.graph'))
    return frame.f_code.co_name if frame.f_globals is run.__globals__ else ''
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    ignore_compile_internals = classmethod(lambda cls: True)
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.see(func, (result := func(*args, **kwargs or {}))) or result
seen = collections.Counter()
def see(func, result):
    seen[func.overloadpacket.__name__] += caller(run) != ''
Watch.see = staticmethod(see)
with Watch():
    run(checkpoint, lambda label, value=None: None, 'cpu')
for label, number in {'sin': 1}.items():
    print(f'{label}: due is {number}, deepspeed-reentrant {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'sin': 1}.items())))
