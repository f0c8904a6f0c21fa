"""torch-graph, law a_graph_saved_on_the_cpu_is_freed. A graph of tensors on the CPU is freed with its outputs, whatever was
asked of it before."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    class Save(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            result = t.exp()
            ctx.save_for_backward(t, result)
            return result
    context = graph.save_on_cpu()
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    with context:
        y = p
        y = Save.apply(y)
    del y
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
with Watch():
    run(graph, note, "cpu")
    note("end")
print("empty: due is 0, torch-graph", seen.get("empty", 0))
sys.exit(seen.get("empty", 0) != 0)
