"""fairscale, law fsdp_inside_regions_gathers_as_often_as_plain. checkpoint(FSDP(m)) gathers twice, in forward and in
backward, for backward gathers what a recomputation needs. torchrun --nproc-per-node 2 shows it."""
import collections, contextlib, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__(); self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

from torch.distributed.fsdp import fully_shard
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = (is_region, torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
        def inner(self, h): return h
        def forward(self, h): return checkpoint(self.inner, h)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__(); self.blocks = torch.nn.ModuleList((Block(is_region) for is_region in (True,)))
        def forward(self, h):
            h = checkpoint(block, h); return h
    model, options = (Model(), {'reshard_after_forward': True})
    for block in model.blocks: fully_shard(block, **options)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, 4, requires_grad=True); loss = model(x * 1).float().square().mean(); loss.backward()
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
