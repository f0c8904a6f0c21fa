"""fairscale, law hooks_see_inputs_in_containers. A tensor inside a container is saved like one that is passed by itself."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(box3):
        h4 = torch.sin(box3[0])
        def f5(box7):
            a6 = box7[0]
            return torch.sin(a6)
        return checkpoint(f5, [h4])
    h10 = checkpoint(f1, [p0])
    end = h10 * p0
    note('saved', [h10, p0])
def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
seen = []
def note(label, value=None):
    if label == 'saved':
        due, packed = (collections.Counter((one for x in value for one in storages(x))), collections.Counter(seen))
        surplus = packed.keys() - due.keys()
        print(f'hooks see: due {due.total()}, fairscale {packed.total()}, missing {(due - packed).total()}')
        sys.exit(bool(due - packed or surplus))
def pack(x):
    seen.extend(storages(x))
    return x
with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x): run(checkpoint, note, 'cpu')
