"""torch-remat, law less_budget_peaks_no_higher. With a smaller activation memory budget no more is alive at once in forward
and backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.backends.debugging import boxed_nop
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(4, 4, device=device, requires_grad=True)
    alive, sizes = ({}, [])
    class Alive(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **kwargs or {})
            for one in result:
                storage = one.untyped_storage()
                alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
            sizes.append(sum((size for storage, size in alive.values() if not storage.expired())))
            return result
    def metered(graph, inputs):
        def inside(args):
            with Alive(): return boxed_nop(graph, inputs)(args)
        inside._boxed_call = True
        return inside
    def step(): return x.sin().exp()
    found = []; backend = aot_autograd(fw_compiler=metered, partition_fn=min_cut_rematerialization_partition)
    for budget in (0.25, 0.0):
        y = torch.compile(step, backend=backend, fullgraph=True)(); found.append(max(sizes))
    note('expected order', sorted(found, reverse=True)); note('seen order', found)
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-remat {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
