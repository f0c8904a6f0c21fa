"""torch-compile, law what_a_function_puts_into_its_arguments_is_freed. A tensor that the function puts into a container that
it is passed is freed with that, before any backward."""
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

from dataclasses import dataclass
def run(checkpoint, note, device):
    torch.manual_seed(0)
    @dataclass
    class Box:
        scale: float
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def f(h, box): box.value = h
    box = {'dataclass': Box(2.0)}['dataclass']
    y = checkpoint(f, p, box)
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
with Watch():
    run(checkpoint, note, 'cpu')
    note('end')
for label, number in {'end': 0}.items(): print(f'{label}: due is {number}, torch-compile {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'end': 0}.items())))
