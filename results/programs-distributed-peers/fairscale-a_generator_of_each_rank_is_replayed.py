"""fairscale, law a_generator_of_each_rank_is_replayed. A region that draws from a stream which ranks share, and from a
generator of each rank, replays both. torchrun --nproc-per-node 2 shows it."""
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

def run(checkpoint, note, device):
    torch.manual_seed(0)
    rank = dist.get_rank()
    torch.manual_seed(3)
    own = torch.Generator().manual_seed(5 + rank)
    weight = torch.nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
    def inner(h, g=None):
        mask = torch.rand(3, 4, generator=g)
        return torch.nn.functional.dropout(torch.sin(h @ weight), 0.5) * mask
    x = torch.ones(3, 4).cumsum(0).requires_grad_()
    h = x
    h = checkpoint(inner, h, own)
    loss = h.square().mean()
    for turn in range(1):
        loss.backward(retain_graph=turn < 0); note(f'gradients {turn}', [weight.grad])
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
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 7.734298706054687e-06)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, fairscale {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
