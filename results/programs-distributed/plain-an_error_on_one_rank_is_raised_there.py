"""plain, law an_error_on_one_rank_is_raised_there. An error in a region on one rank, in forward or in recomputation, is
raised there; the others come back. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    rank, calls = (dist.get_rank(), [])
    def inner(h):
        if rank == 0 and backward:
            raise ArithmeticError('of this rank alone')
        return torch.tanh(torch.cos(h))
    torch.manual_seed(1 + rank)
    x = torch.randn(3, 4, requires_grad=True)
    backward = False
    h = x
    h = checkpoint(inner, h)
    loss = h.square().mean()
    backward = True
    loss.backward()

dist.init_process_group("gloo")
try:
    run(checkpoint, lambda label, value=None: None, 'cpu')
except ArithmeticError as error:
    print(f'rank {dist.get_rank()}: {error!r}', flush=True)
    os._exit(0)
except Exception as error:
    print(f'rank {dist.get_rank()}: {error!r}', flush=True)
    os._exit(int(dist.get_rank() == 0))
os._exit(int(dist.get_rank() == 0))
