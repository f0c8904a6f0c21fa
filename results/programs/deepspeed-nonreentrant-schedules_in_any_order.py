"""deepspeed-nonreentrant, law schedules_in_any_order. Forward, backward of any kind, errors and drops in any order give
plain's gradients, and keep nothing."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, ))
    def forward():
        def f1(a2):
            h3 = a2 * a2
            def f4(a5, a6):
                h7 = a5 * a5
                return h7
            h8 = checkpoint(f4, h3, a2)
            h9 = torch.cos(h8)
            h10 = torch.sin(h9)
            return h10
        h11 = checkpoint(f1, p0)
        return h11,
    graph1 = forward()
    note('held 1', [graph1])
    del graph1
    note('empty 2', [])
    graph2 = forward(); note('held 3', [graph2]); torch.autograd.backward([graph2[0]], [torch.ones_like(graph2[0])])
    note('gradients 4', [p0.grad]); note('held 4', [graph2]); del graph2; note('empty 5', [])
def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    ignore_compile_internals = classmethod(lambda cls: True)
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return self.see(func, (result := func(*args, **kwargs or {}))) or result
made, leaves, seen = (set(), [], {})
def note(label, value=None):
    leaves.extend(value if label == 'leaves' else ())
    seen[label] = sum((not one.expired() for one in made.difference(storages([value, leaves, [x.grad for x in leaves]]))))
gc.disable(); Watch.see = staticmethod(lambda func, result: made.update(storages(result, torch.uint8)))
with Watch(): run(checkpoint, note, 'cpu')
for label, number in {'held 1': 0}.items(): print(f'{label}: due is {number}, deepspeed-nonreentrant {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'held 1': 0}.items())))
