"""plain, law each_region_repeats_its_own_collectives. Each region issues what plain's does in forward and in backward, and
in its recomputation what it issued in forward. torchrun --nproc-per-node 2 shows it."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from impls.plain import checkpoint

from torch.distributed.nn.functional import all_reduce
def run(checkpoint, note, device):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 4))
    def exchanged(kind, h): return all_reduce(h)
    def made(number, its):
        def inner(h):
            for kind in its: h = exchanged(kind, torch.sin(h @ weight))
            return torch.tanh(h)
        return inner
    functions = [made(number, its) for number, its in enumerate((('sum',),))]
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(dist.get_world_size() * 2, 4, requires_grad=True)
    h = x
    for function in functions: h = checkpoint(function, h)
    h.square().mean().backward()
dist.init_process_group("gloo")
issued = []
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.strip('_')
        if 'c10d' in func.namespace and name not in ('wait_tensor', 'wrap_tensor_autograd', 'monitored_barrier'):
            issued.append(name)
        return func(*args, **kwargs or {})
with Watch(): run(checkpoint, lambda label, value=None: None, 'cpu')
all_of_them = [None] * dist.get_world_size()
dist.all_gather_object(all_of_them, issued)
print(f"rank {dist.get_rank()} issues {dict(collections.Counter(issued))}; due: { {'allreduce': 3}}", flush=True)
os._exit(collections.Counter(issued) != {'allreduce': 3})
