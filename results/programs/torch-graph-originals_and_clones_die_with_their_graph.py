"""torch-graph, law originals_and_clones_die_with_their_graph. What was saved and what was cloned for it die with the graph,
inside of the context and after it."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.rand(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    def forward():
        x = y = p * 1
        y = torch.exp(y)
    with graph.allow_mutation_on_saved_tensors():
        y = forward()
        note('empty inside', [])

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
with Watch():
    run(graph, note, "cpu")
    note("end")
print("empty inside: due is 0, torch-graph", seen.get("empty inside", 0))
sys.exit(seen.get("empty inside", 0) != 0)
