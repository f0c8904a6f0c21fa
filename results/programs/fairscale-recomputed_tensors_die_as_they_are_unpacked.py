"""fairscale, law recomputed_tensors_die_as_they_are_unpacked. When a node is due, no tensor of the inside is alive but those
that this backward has yet to unpack (rule 4)."""
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
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        h3.requires_grad and h3.register_hook(lambda grad: note('due h3'))
        return h3
    h4 = checkpoint(f1, p0)
    h4.backward(h4)
def caller(run):
    frames = ((f, f.f_globals.get('__name__', 'torch.')) for f, _ in traceback.walk_stack(sys._getframe(3)))
    frame = next((f for f, name in frames if not name.startswith('torch.') or name == 'torch.autograd.graph'))
    return frame.f_code.co_name if frame.f_globals is run.__globals__ else ''
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    ignore_compile_internals = classmethod(lambda cls: True)
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.see(func, (result := func(*args, **kwargs or {}))) or result
made, seen = ({}, {})
def see(func, result):
    for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(result)):
        made.setdefault(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()), caller(run) not in ('', 'run'))
def note(label, value=None):
    seen[label] = max(seen.get(label, 0), sum((counts and (not one.expired()) for one, counts in made.items())))
gc.disable()
Watch.see = staticmethod(see)
with Watch(): run(checkpoint, note, 'cpu')
for label, number in {'due h3': 1}.items(): print(f'{label}: due is at most {number}, fairscale {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'due h3': 1}.items())))
