"""plain, law containers_that_nested_regions_empty. Where nested regions take the tensor out of a container, no more are
alive in backward than the plan allows."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def put(box, value): box.append(value)
    def layer(h, index):
        h = h.sin()
        h.register_hook(lambda grad: note(f'due {index}'))
        return h
    def halves(first, count):
        def f(box):
            if count > 1:
                put(box, checkpoint(halves(first, count // 2), box))
                put(box, checkpoint(halves(first + count // 2, count - count // 2), box))
            else:
                put(box, layer(box.pop(0), first))
            return box.pop(0)
        return f
    box = [p]
    y = halves(0, 4)(box)
    y.backward(y)
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
for label, number in {'due 3': 4}.items(): print(f'{label}: due is at most {number}, plain {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) > number for label, number in {'due 3': 4}.items())))
