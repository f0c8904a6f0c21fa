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
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device)
    note('leaves', (p0, ))
    armed = {'h6': Planned}
    with contextlib.suppress(Planned):
        def f1(a2):
            h3 = torch.sin(a2)
            def f4(): raise armed.pop('h6')('program')
            h7 = checkpoint(f4)
        h10 = f1(p0)
    note('empty 6', [])
made, leaves, seen = set(), [], {}
def storages(tree):
    tensors = [x for x in torch.utils._pytree.tree_leaves(tree) if torch.is_tensor(x) and x.dtype != torch.uint8 and x.numel()]
    return {torch.multiprocessing.reductions.StorageWeakRef(x.untyped_storage()) for x in tensors}
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return made.update(storages(result := func(*args, **(kwargs or {})))) or result
def note(label, value=None):
    leaves.extend(value if label == "leaves" else ())
    seen[label] = sum(not one.expired() for one in made - storages([value, leaves, [x.grad for x in leaves]]))
gc.disable()  # what only the collector finds lives too long
with Watch(): run(checkpoint, note, "cpu")
print("empty 6: due is 0, torch-compile", seen.get("empty 6", 0))
sys.exit(seen.get("empty 6", 0) != 0)
