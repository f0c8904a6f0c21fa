"""fairscale, law statistics_over_ranks_are_updated_once. Statistics that a region averages over ranks are updated once for
each forward. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

from torch.distributed.nn.functional import all_reduce
def run(checkpoint, note, device):
    torch.manual_seed(0)
    mean = torch.zeros(4)
    def normalized(h):
        shared = all_reduce(h.mean(0)) / dist.get_world_size()
        mean.lerp_(shared.detach(), 0.5)
        return torch.tanh(h - shared)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1):
        x = torch.randn(3, 4, requires_grad=True)
        y = checkpoint(normalized, x)
        y.square().mean().backward()
        note(f'statistics {step}', mean)
def kept(x): return x.detach().clone() if torch.is_tensor(x) else x
def differ(x, y, tolerance):
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) != len(y) or any((differ(one, other, tolerance) for one, other in zip(x, y)))
    if torch.is_tensor(x) and torch.is_tensor(y) and (x.shape == y.shape) and (x.dtype == y.dtype):
        return not (torch.equal(x, y) or float((x.double() - y.double()).abs().max()) <= tolerance)
    return str(x) != str(y)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo")
rank = dist.get_rank(); expected, seen = ({}, {})
run(plain, lambda label, value=None: expected.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
try: run(checkpoint, lambda label, value=None: seen.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
except Exception as error:
    print(f'rank {rank}, fairscale: {error!r}', flush=True); os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 6.00576400756836e-06)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, fairscale {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
