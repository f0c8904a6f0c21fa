"""plain, law recomputations_repeat_forwards_collectives_once. Collectives before the last operator that saves are issued
once more in a recomputation; backward issues plain's. torchrun --nproc-per-node 2 shows it."""
import collections, contextlib, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from impls.plain import checkpoint

from torch.distributed.nn.functional import all_reduce
def run(checkpoint, note, device):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 4))
    world, rank = (dist.get_world_size(), dist.get_rank())
    def exchanged(kind, h): return all_reduce(h)
    def inner(h):
        for kind in ('sum',): h = exchanged(kind, torch.sin(h @ weight))
        return torch.tanh(h)
    def outer(h): return inner(torch.cos(h))
    torch.manual_seed(1 + rank)
    x = torch.randn(world * 2, 4, requires_grad=True)
    h = x
    h = checkpoint(outer, h)
    h.square().mean().backward()
dist.init_process_group("gloo")
issued = collections.Counter()
inside = []
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.strip('_')
        if 'c10d' in func.namespace and name not in ('wait_tensor', 'wrap_tensor_autograd', 'monitored_barrier'):
            issued.update([name] if inside and torch._C._current_graph_task_id() != -1 else [])
        return func(*args, **kwargs or {})
def region(function, *args, **kwargs):
    def one(*args, **kwargs):
        with contextlib.ExitStack() as stack:
            inside.append('')
            stack.callback(inside.pop)
            return function(*args, **kwargs)
    return checkpoint(one, *args, **kwargs)
with Watch(): run(region, lambda label, value=None: None, 'cpu')
print(f"rank {dist.get_rank()} issues {dict(issued)} in recomputations; due: { {'allreduce': 1}}", flush=True)
os._exit(issued != {'allreduce': 1})
