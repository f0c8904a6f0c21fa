"""torch-remat, law regions_that_ranks_recompute_in_another_order. If ranks call the backward of their regions in different
orders, collectives that only forward has are not mixed up. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    def summed(h):
        total = h.detach().clone()
        dist.all_reduce(total)
        return total + 0
    def first(h): return torch.sin(h * summed(torch.sin(h)))
    def second(h): return torch.cos(h * summed(torch.cos(h)) * 2)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, requires_grad=True)
    y = torch.randn(3, requires_grad=True)
    one, other = (checkpoint(first, x), checkpoint(second, y))
    if dist.get_rank() % 2: one, other = (other, one)
    one.sum().backward()
    note('gradients', [y.grad])
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
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 8.373260498046875e-05)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, torch-remat {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
