"""torch-compile, law hooks_see_repeated_inputs_once. A tensor that is passed to a region several times is saved once for it."""
import collections, os, sys
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
    c0 = torch.randn(2, 2, dtype=torch.float64, device=device)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2, a3, a4):
        h5 = a2 * a4
        def f6(a7, a8): return (a7 * a8)
        return checkpoint(f6, h5, h5)
    h11 = checkpoint(f1, p0, c0, p0)
    end = h11 * p0
    note('saved', [p0, c0, h11, p0])
def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
seen = []
def note(label, value=None):
    if label == 'saved':
        due, packed = (collections.Counter((one for x in value for one in storages(x))), collections.Counter(seen))
        surplus = packed - due
        print(f'hooks see: due {due.total()}, torch-compile {packed.total()}, missing {(due - packed).total()}')
        sys.exit(bool(due - packed or surplus))
def pack(x):
    seen.extend(storages(x))
    return x
with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x): run(checkpoint, note, 'cpu')
