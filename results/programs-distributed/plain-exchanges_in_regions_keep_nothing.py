"""plain, law exchanges_in_regions_keep_nothing. After forward and after backward nothing that an all-to-all inside of a
region made is alive on any rank. torchrun --nproc-per-node 2 shows it."""
# The law measures more than this script does, which only prints what the program notes. What was found:
# rank 0: at 'held 0' 1 storages that regions made are alive; expected: 0
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from impls.plain import checkpoint

from torch.distributed.nn.functional import all_to_all_single
def run(checkpoint, note, device):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(4, 4))
    def inner(h):
        h = torch.sin(h @ weight)
        h = all_to_all_single(torch.empty_like(h), h)
        return torch.tanh(h)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1):
        x = torch.randn(dist.get_world_size() * 2, 4, requires_grad=True)
        between = [x]
        for _ in range(1): between.append(checkpoint(inner, between[-1]))
        loss = between[-1].square().mean()
        note(f'held {step}', [between, loss])
        loss.backward()
        between.clear()
        note(f'gradients {step}', [x.grad, weight.grad])
        note(f'empty {step}', [x, loss, weight])
        weight.grad = None
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo")
rank = dist.get_rank()
for which, one in (('plain', plain), ('plain', checkpoint)):
    run(one, lambda label, value=None, which=which: print(f'rank {rank}, {label}: {which} {value}', flush=True), 'cpu')
dist.barrier()
os._exit(0)
