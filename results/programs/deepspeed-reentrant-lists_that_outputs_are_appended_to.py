"""deepspeed-reentrant, law lists_that_outputs_are_appended_to. Graphs whose outputs are put into containers that were passed
to their regions do not pile up without a backward."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def put(box, value): box.append(value)
    def f(h, box): return h.exp()
    beside = [checkpoint(f, p, [2.0]) for _ in range(0)]
    for step in range(8):
        box = {'list': [2.0]}['list']
        y = checkpoint(f, p, box)
        put(box, y)
        note(f'step {step}', beside)
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
gc.disable()
Watch.see = staticmethod(lambda func, result: made.update(storages(result, torch.uint8)))
with Watch(): run(checkpoint, note, 'cpu')
for label, number in {'step 4': 4}.items(): print(f'{label}: due is at most {number}, deepspeed-reentrant {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'step 4': 4}.items())))
