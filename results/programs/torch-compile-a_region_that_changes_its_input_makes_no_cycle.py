"""torch-compile, law a_region_that_changes_its_input_makes_no_cycle. A region that changes its input in place, and may
return it or raise, is freed with its outputs, or refused at once."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling():
        return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    def f(h): h.tanh_()
    held = [p * 1]
    held.append(checkpoint(f, held[0]))
    held.clear()
    note('empty', [])
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
print("empty: due is 0, torch-compile", seen.get("empty", 0))
sys.exit(seen.get("empty", 0) != 0)
