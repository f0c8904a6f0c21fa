"""torch-graph, law an_error_retains_no_gradient. After a backward that raised, in the hook or before all gradients were
there, no gradient is kept."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    note('leaves', (p, q))
    class Planned(Exception): pass
    raised = Planned
    def fail(*_): raise raised('program')
    def hook(grads): fail()
    def loss():
        late = q.cos()
        return late.sum() + p.cos().sum()
    handle = graph.register_multi_grad_hook([q], hook, mode='all')
    try: loss().backward()
    except Planned as came: note('came 0', str(came))
    note('empty 0', [])
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
print("empty 0: due is 0, torch-graph", seen.get("empty 0", 0))
sys.exit(seen.get("empty 0", 0) != 0)
