"""deepspeed-reentrant, law recomputation_is_hidden_from_hooks. Hooks that are active during backward see nothing of what a
recomputation saves."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        h3 = a2 * a2
        def f4(a5):
            h6 = a5 * a5
            return h6
        h7 = checkpoint(f4, h3)
        return h7
    h8 = checkpoint(f1, p0)
    note('forward', (h8,))
    h8.backward(torch.ones_like(h8))

def storages(tree, without=None):
    dense = [x for x in filter(torch.is_tensor, torch.utils._pytree.tree_leaves(tree)) if x.layout == torch.strided]
    found = [x.untyped_storage() for x in dense if x.dtype != without]
    return {torch.multiprocessing.reductions.StorageWeakRef(one): one.nbytes() for one in found if one.nbytes()}
packs, forward = ([], [])
def note(label, value=None):
    forward.extend([len(packs)] * (label == 'forward'))
def pack(x):
    packs.extend(storages(x))
    return x
with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
    run(checkpoint, note, 'cpu')
seen = {'packed in forward': forward[0], 'packed in backward': len(packs) - forward[0]}
for label, number in {'packed in backward': 0}.items():
    print(f'{label}: due is {number}, deepspeed-reentrant {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'packed in backward': 0}.items())))
