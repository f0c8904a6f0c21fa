"""torch-remat, law masks_of_dtensors_are_replayed. The mask that a rank draws in a region, of its own part of a DTensor or
of one that all have, is drawn again. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

from torch.distributed.tensor import Shard, distribute_tensor
def run(checkpoint, note, device):
    torch.manual_seed(0)
    mesh = dist.init_device_mesh(device, (dist.get_world_size(),))
    torch.manual_seed(7)
    x = distribute_tensor(torch.ones(4, 4).cumsum(0), mesh, [Shard(0)]).requires_grad_()
    h = x
    h = checkpoint(lambda h: torch.nn.functional.dropout(torch.sin(h), 0.25), h)
    h.full_tensor().square().mean().backward()
    note('gradients', [x.grad.full_tensor()])
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
    print(f'rank {rank}, torch-remat: {error!r}', flush=True)
    os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 3.3545494079589844e-06)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, torch-remat {seen.get(label)}', flush=True)
dist.barrier()
os._exit(len(wrong) > 0)
