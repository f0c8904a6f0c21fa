"""torch-graph, law an_error_retains_no_gradient. After a backward that raised, in the hook or before all gradients were
there, no gradient is kept."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note('leaves', (p, q))
    class Planned(Exception): pass
    def fail(*_): raise Planned('program')
    def hook(grads): fail()
    def loss(): return q.cos().sum() + p.cos().sum()
    handle = graph.register_multi_grad_hook([q], hook, mode='all')
    for number in range(2):
        try: loss().backward()
        except (Planned, KeyboardInterrupt) as came: note(f'came {number}', str(came))
        note(f'empty {number}', [])
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
for label, number in {'empty 0': 0}.items(): print(f'{label}: due is {number}, torch-graph {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'empty 0': 0}.items())))
