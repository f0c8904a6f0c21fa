"""torch-graph, law a_graph_saved_on_the_cpu_is_freed. A graph of tensors on the CPU is freed with its outputs, whatever was
asked of it before."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            result = t.exp()
            ctx.save_for_backward(t, result)
            return result
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    with graph.save_on_cpu():
        y = p
        y = Save.apply(y)
    del y
    note('empty', [])
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
with Watch(): run(graph, note, 'cpu')
for label, number in {'empty': 0}.items(): print(f'{label}: due is {number}, torch-graph {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'empty': 0}.items())))
