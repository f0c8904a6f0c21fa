"""torch-remat, law hooks_see_inputs_passed_by_keyword. A tensor passed by keyword is saved like one that is passed by
position."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = torch.sin(a2)
        return h3
    h4 = checkpoint(f1, a2=p0)
    end = h4 * p0
    note('saved', [p0, h4, p0])

def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
seen = []
def note(label, value=None):
    if label == 'saved':
        due, packed = (collections.Counter((one for x in value for one in storages(x))), collections.Counter(seen))
        surplus = packed.keys() - due.keys()
        print(f'hooks see: due {due.total()}, torch-remat {packed.total()}, missing {(due - packed).total()}')
        sys.exit(bool(due - packed or surplus))
def pack(x):
    seen.extend(storages(x))
    return x
with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
    run(checkpoint, note, 'cpu')
