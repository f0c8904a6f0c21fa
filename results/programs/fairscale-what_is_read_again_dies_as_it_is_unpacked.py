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
    def outer(h):
        for index in range(1):
            h = h.sin()
            if h.requires_grad: h.register_hook(lambda grad, index=index: note(f"due {'before'} {index}"))
        return h
    y = checkpoint(outer, p)
    note('forward', y)
    for turn in range(1): y.backward(y, retain_graph=turn < 0)
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
    if label in ('forward', 'held 1'): made.update(dict.fromkeys(made, False))
    seen[label] = max(seen.get(label, 0), sum((counts and (not one.expired()) for one, counts in made.items())))
gc.disable()
Watch.see = staticmethod(see)
with Watch(): run(checkpoint, note, 'cpu')
for label, number in {'due before 0': 0}.items(): print(f'{label}: due is at most {number}, fairscale {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'due before 0': 0}.items())))
