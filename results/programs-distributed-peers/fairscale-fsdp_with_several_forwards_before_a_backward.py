"""fairscale, law fsdp_with_several_forwards_before_a_backward. Several forwards of units that one region has, before one
backward, give plain's shards after some steps. torchrun --nproc-per-node 2 shows it."""
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

from torch.distributed.fsdp import fully_shard
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Parent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
        def inner(self, h): return self.second(torch.tanh(self.first(h)))
        def forward(self, h): return checkpoint(self.inner, h)
    model = Parent()
    fully_shard(model.first)
    fully_shard(model); torch.manual_seed(1 + dist.get_rank())
    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]; product = torch.ones(3, 4)
    for x in inputs: product = product * model(x * 1)
    product.square().mean().backward(); note('whole parameters', [one.full_tensor() for one in model.parameters()])
def kept(x): return x.detach().clone() if torch.is_tensor(x) else x
def differ(x, y, tolerance):
    if isinstance(x, list | tuple) and isinstance(y, list | tuple):
        return len(x) != len(y) or any((differ(one, other, tolerance) for one, other in zip(x, y)))
    if torch.is_tensor(x) and torch.is_tensor(y) and (x.shape == y.shape) and (x.dtype == y.dtype):
        return not (torch.equal(x, y) or float((x.double() - y.double()).abs().max()) <= tolerance)
    return str(x) != str(y)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo"); rank = dist.get_rank(); expected, seen = ({}, {})
run(plain, lambda label, value=None: expected.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
try: run(checkpoint, lambda label, value=None: seen.update({label: torch.utils._pytree.tree_map(kept, value)}), 'cpu')
except Exception as error:
    print(f'rank {rank}, fairscale: {error!r}', flush=True); os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 1.4579296112060547e-05)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, fairscale {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
