"""torch-compile, law hooks_see_the_outermost_inputs_alone. Hooks on saved tensors see what is saved outside regions and each
input of the outermost ones, nothing else."""
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
    def f1(a2, a3):
        def f5(a6): return torch.sin(a6)
        h8 = checkpoint(f5, torch.sin(a2))
        return h8
    h9 = checkpoint(f1, p0, c0)
    end = h9 * p0
    note('saved', [c0, h9, p0])
def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
seen = []
def note(label, value=None):
    if label == 'saved':
        due, packed = (collections.Counter((one for x in value for one in storages(x))), collections.Counter(seen))
        surplus = packed.keys() - due.keys()
        print(f'hooks see: due {due.total()}, torch-compile {packed.total()}, missing {(due - packed).total()}')
        sys.exit(bool(due - packed or surplus))
def pack(x):
    seen.extend(storages(x))
    return x
with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x): run(checkpoint, note, 'cpu')
