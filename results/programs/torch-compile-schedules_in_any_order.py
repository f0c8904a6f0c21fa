"""torch-compile, law schedules_in_any_order. Forward, backward of any kind, errors and drops in any order give plain's
gradients, and keep nothing."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs): return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling(): return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, ))
    def forward():
        def f1(a2): return torch.sin(a2)
        h5 = checkpoint(f1, p0)
        def f6(a7): return torch.sin(a7)
        return h5, checkpoint(f6, h5),
    graph1 = forward()
    note('first order 2', torch.autograd.grad([graph1[1]], [p0], [torch.ones_like(graph1[1])], allow_unused=True, create_graph=True))
    del graph1
    note('empty 3', [])
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
for label, number in {'empty 3': 0}.items(): print(f'{label}: due is {number}, torch-compile {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'empty 3': 0}.items())))
