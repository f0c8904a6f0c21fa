"""torch-selective, law hooks_see_inputs_passed_by_keyword. A tensor passed by keyword is saved like one that is passed by
position."""
import collections, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        def f4(a5, a6):
            h7 = a5 * a6
            return h7
        h8 = checkpoint(f4, a2 * a2, a6=a2)
        return h8
    h9 = checkpoint(f1, a2=p0)
    end = h9 * p0
    note('saved', [p0, h9, p0])
def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
seen = []
def note(label, value=None):
    if label == 'saved':
        due, packed = (collections.Counter((one for x in value for one in storages(x))), collections.Counter(seen))
        surplus = packed.keys() - due.keys()
        print(f'hooks see: due {due.total()}, torch-selective {packed.total()}, missing {(due - packed).total()}')
        sys.exit(bool(due - packed or surplus))
def pack(x):
    seen.extend(storages(x))
    return x
with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x): run(checkpoint, note, 'cpu')
