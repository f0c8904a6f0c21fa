"""torch-compile, law an_error_in_forward_keeps_nothing. After an error or interrupt in a region's forward nothing of it is
alive, and a retry gives plain's gradients."""
import contextlib, gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs): return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling(): return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

class Planned(ValueError): pass
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, ))
    armed = {}
    armed['h6'] = Planned
    with contextlib.suppress(Planned):
        def f1(a2):
            def f4(a5): raise armed.pop('h6')('program')
            h7 = checkpoint(f4, torch.sin(a2))
        h10 = checkpoint(f1, p0)
    note('empty 6', [])
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
for label, number in {'empty 6': 0}.items(): print(f'{label}: due is {number}, torch-compile {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'empty 6': 0}.items())))
