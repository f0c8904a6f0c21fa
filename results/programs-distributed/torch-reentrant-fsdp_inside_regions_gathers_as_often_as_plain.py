"""torch-reentrant, law fsdp_inside_regions_gathers_as_often_as_plain. checkpoint(FSDP(m)) gathers twice, in forward and in
backward, for backward gathers what a recomputation needs. torchrun --nproc-per-node 2 shows it."""
# The law measures more than this script does, which compares what the program notes. What was found:
# rank 0 issues 2 allgather_base in recomputation; due in what runs again: none
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = (is_region, torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
        def inner(self, h):
            h = h + self.second(torch.tanh(self.first(h))); return h
        def forward(self, h): return checkpoint(self.inner, h) if self.is_region and False else self.inner(h)
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__(); self.blocks = torch.nn.ModuleList((Block(is_region) for is_region in (True,)))
        def forward(self, h):
            for block in self.blocks: h = checkpoint(block, h) if block.is_region and True else block(h)
            return h
    model, options = (Model(), {'reshard_after_forward': True})
    for block in model.blocks: fully_shard(block, **options)
    fully_shard(model, **options); optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(2):
        for part in range(1):
            model.set_requires_gradient_sync(part == 0)
            x = torch.randn(3, 4, requires_grad=True); loss = model(x * 1).float().square().mean()
            loss.backward(); note(f'forward {step} {part}', loss); note(f'gradients of the input {step} {part}', x.grad)
        note(f'gradients {step}', [None if one.grad is None else one.grad.to_local() for one in model.parameters()])
        note(f'sharded {step}', [type(one).__name__ for one in model.parameters()]); optimizer.step(); optimizer.zero_grad()
    note('parameters', [one.to_local() for one in model.parameters()])
    for one in model.modules():
        if isinstance(one, FSDPModule): one.reshard()
    note('whole parameters', [one.full_tensor() for one in model.parameters()])
def kept(x): return x.detach().clone() if torch.is_tensor(x) else x
def differ(x, y, tolerance):
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) != len(y) or any((differ(one, other, tolerance) for one, other in zip(x, y)))
    if torch.is_tensor(x) and torch.is_tensor(y) and (x.shape == y.shape) and (x.dtype == y.dtype):
        return not (torch.equal(x, y) or float((x.double() - y.double()).abs().max()) <= tolerance)
    return str(x) != str(y)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo"); seen = []
for one in (plain, checkpoint):
    seen.append({})
    try: run(one, lambda label, value=None: seen[-1].update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
    except Exception as error:
        print(f"rank {dist.get_rank()}, {('plain' if one is plain else 'torch-reentrant')}: {error!r}", flush=True)
        os._exit(1 if one is checkpoint else 2)
wrong = [label for label, value in seen[0].items() if differ(value, seen[1].get(label), 0.0)]
for label in wrong:
    print(f'rank {dist.get_rank()}, {label}: plain {seen[0][label]}, torch-reentrant {seen[1].get(label)}', flush=True)
dist.barrier(); sys.exit(len(wrong) > 0)
