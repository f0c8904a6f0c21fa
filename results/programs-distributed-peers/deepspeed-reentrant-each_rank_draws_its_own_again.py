"""deepspeed-reentrant, law each_rank_draws_its_own_again. A mask that a rank draws in a region is that rank's own, is
replayed on it, and leaves its stream as plain does. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    rank = dist.get_rank()
    torch.manual_seed(3 + rank)
    own = torch.Generator().manual_seed(5 + rank)
    weight = torch.nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(1)))
    def inner(h, g=None):
        mask = torch.rand(3, 4)
        return torch.nn.functional.dropout(torch.sin(h @ weight), 0.25) * mask
    x = torch.ones(3, 4).cumsum(0).requires_grad_()
    h = x
    h = checkpoint(inner, h)
    loss = h.square().mean()
    for turn in range(2): loss.backward(retain_graph=turn < 1)
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
    print(f'rank {rank}, deepspeed-reentrant: {error!r}', flush=True)
    os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 0.0)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, deepspeed-reentrant {seen.get(label)}', flush=True)
dist.barrier()
os._exit(len(wrong) > 0)
