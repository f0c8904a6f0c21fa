"""plain, law exchanges_in_regions_keep_nothing. After forward and after backward nothing that an all-to-all inside of a
region made is alive on any rank. torchrun --nproc-per-node 2 shows it."""
# The law measures more than this script does, which compares what the program notes. What was found:
# rank 0: at 'held 0' 3 storages that regions made are alive; expected: 0
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
        loss.backward(); between.clear()
        note(f'gradients {step}', [x.grad, weight.grad]); note(f'empty {step}', [x, loss, weight]); weight.grad = None
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
        print(f"rank {dist.get_rank()}, {('plain' if one is plain else 'plain')}: {error!r}", flush=True)
        os._exit(1 if one is checkpoint else 2)
wrong = [label for label, value in seen[0].items() if differ(value, seen[1].get(label), 0.0)]
for label in wrong: print(f'rank {dist.get_rank()}, {label}: plain {seen[0][label]}, plain {seen[1].get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
