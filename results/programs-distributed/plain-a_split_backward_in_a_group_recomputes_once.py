"""plain, law a_split_backward_in_a_group_recomputes_once. Inside of a GraphExecGroup one recomputation serves both halves of
a split backward, on each rank. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(4)) for _ in range(1)]
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, 4, requires_grad=True)
    def inner(h, weight):
        z = torch.sin(weight).cos()
        h = torch.tanh(h) + z
        return (z, torch.sin(h))
    h, products = (x, [])
    for weight in weights:
        z, h = checkpoint(inner, h, weight)
        products.append(z)
    loss = h.square().mean()
    dx, *dz = torch.autograd.grad(loss, [*products], retain_graph=True)

dist.init_process_group("gloo")
called = []
def counted(function, *args, **kwargs):
    def one(*args, **kwargs):
        called.append('')
        return function(*args, **kwargs)
    return checkpoint(one, *args, **kwargs)
run(counted, lambda label, value=None: None, 'cpu')
print(f'rank {dist.get_rank()}: {len(called)} calls; due: 2', flush=True)
os._exit(len(called) != 2)
