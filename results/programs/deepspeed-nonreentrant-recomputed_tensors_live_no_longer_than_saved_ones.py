"""deepspeed-nonreentrant, law recomputed_tensors_live_no_longer_than_saved_ones. In a retained backward no more recomputed
tensors are alive at a node than saved ones in a plain backward that frees."""
import gc, os, sys, traceback
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(2)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def forward():
        def f1(a2):
            h3 = a2 @ a2
            h3.register_hook(lambda grad: note('due f1 h3'))
            return h3 @ h3
        return (checkpoint(f1, p0),)
    graph1 = forward()
    torch.autograd.backward([graph1[0]], [torch.ones_like(graph1[0])], retain_graph=True)
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
        made.setdefault(torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()), caller(run) == 'f1')
def note(label, value=None):
    if label in ('forward', 'held 1'): made.update(dict.fromkeys(made, False))
    seen[label] = max(seen.get(label, 0), sum((counts and (not one.expired()) for one, counts in made.items())))
gc.disable()
Watch.see = staticmethod(see)
with Watch(): run(checkpoint, note, 'cpu')
for label, number in {'due f1 h3': 1}.items():
    print(f'{label}: due is at most {number}, deepspeed-nonreentrant {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'due f1 h3': 1}.items())))
