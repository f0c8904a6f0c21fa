"""torch-remat, law hybrid_sharding_communicates_as_often_as_plain. With hybrid sharding each rank issues the collectives of
plain regions, and none in a recomputation. torchrun --nproc-per-node 4 shows it."""
import collections, contextlib, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

from torch.distributed.fsdp import fully_shard
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = (is_region, torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))
        def inner(self, h): return h + self.second(torch.tanh(self.first(h)))
        def forward(self, h): return checkpoint(self.inner, h) if self.is_region and False else self.inner(h)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = torch.nn.ModuleList((Block(is_region) for is_region in (True,)))
        def forward(self, h):
            h = checkpoint(block, h); return h
    mesh = dist.init_device_mesh(device, (dist.get_world_size() // 2, 2), mesh_dim_names=('outer', 'inner'))
    sharded = mesh; model = Model()
    for block in model.blocks: fully_shard(block, mesh=sharded, reshard_after_forward=True)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, 4, requires_grad=True); loss = model(x * 1).square().mean(); loss.backward()
dist.init_process_group("gloo"); issued = collections.Counter(); inside = []
class Watch(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__.strip('_')
        if 'c10d' in func.namespace and name not in ('wait_tensor', 'wrap_tensor_autograd', 'monitored_barrier'):
            issued.update([name] if inside and torch._C._current_graph_task_id() != -1 else [])
        return func(*args, **kwargs or {})
def region(function, *args, **kwargs):
    def one(*args, **kwargs):
        with contextlib.ExitStack() as stack:
            inside.append(''); stack.callback(inside.pop); return function(*args, **kwargs)
    return checkpoint(one, *args, **kwargs)
with Watch(): run(region, lambda label, value=None: None, 'cpu')
print(f'rank {dist.get_rank()} issues {dict(issued)} in recomputations; due: { {}}', flush=True); os._exit(issued != {})
