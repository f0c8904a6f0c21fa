"""torch-selective, law recomputed_tensors_die_as_they_are_unpacked. When a node is due, no tensor of the inside is alive but
those that this backward has yet to unpack (rule 4)."""
import functools, gc, os, sys, traceback
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
    def f1(a2, a3):
        h5 = torch.sin(a2 @ a3)
        h5.requires_grad and h5.register_hook(lambda grad: note('due h5'))
        return h5
    h6 = checkpoint(f1, p0, torch.randn(2, 2, dtype=torch.float64, device=device))
    h6.backward(h6)
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
for label, number in {'due h5': 1}.items(): print(f'{label}: due is at most {number}, torch-selective {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'due h5': 1}.items())))
