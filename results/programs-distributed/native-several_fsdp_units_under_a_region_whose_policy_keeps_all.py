"""native, law several_fsdp_units_under_a_region_whose_policy_keeps_all. A policy may keep all of a region around several
units, what these gather included: each rank has plain's shards. torchrun --nproc-per-node 2 shows it."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from impls.native.api import checkpoint
def everything():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts(lambda *_, **__: torch.utils.checkpoint.CheckpointPolicy.MUST_SAVE)
checkpoint = functools.partial(checkpoint, context_fn=everything)

from torch.distributed.fsdp import fully_shard
def run(checkpoint, note, device):
    torch.manual_seed(0)
    layers = [fully_shard(torch.nn.Linear(4, 4), reshard_after_forward=True) for _ in range(2)]
    model = torch.nn.Sequential(*layers, torch.nn.Tanh())
    torch.manual_seed(1 + dist.get_rank())
    for step in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        y = checkpoint(model, x * 1)
        y.square().mean().backward()
        note(f'gradients {step}', [*(one.grad.to_local() for one in model.parameters())])
def kept(x): return x.detach().clone() if torch.is_tensor(x) else x
def differ(x, y, tolerance):
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) != len(y) or any((differ(one, other, tolerance) for one, other in zip(x, y)))
    if torch.is_tensor(x) and torch.is_tensor(y) and (x.shape == y.shape) and (x.dtype == y.dtype):
        return not (torch.equal(x, y) or float((x.double() - y.double()).abs().max()) <= tolerance)
    return str(x) != str(y)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo")
rank = dist.get_rank()
expected, seen = ({}, {})
run(plain, lambda label, value=None: expected.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
try: run(checkpoint, lambda label, value=None: seen.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
except Exception as error:
    print(f'rank {rank}, native: {error!r}', flush=True)
    os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 0.0)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, native {seen.get(label)}', flush=True)
dist.barrier()
os._exit(len(wrong) > 0)
