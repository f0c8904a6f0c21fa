"""deepspeed-reentrant, law ddp_with_shared_weights. A block whose weights are used twice in a forward trains under
DistributedDataParallel as with plain regions. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = (is_region, torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
        def inner(self, h):
            h = h + self.second(torch.tanh(self.first(h)))
            return h
        def forward(self, h): return checkpoint(self.inner, h)
    blocks = [Block(is_region) for is_region in (True,)]
    blocks.append(blocks[0])
    model = torch.nn.Sequential(*blocks)
    ddp = torch.nn.parallel.DistributedDataParallel(model, **{})
    torch.manual_seed(1 + dist.get_rank())
    for step in range(2):
        inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(1)]
        loss = sum((ddp(one).square().mean() for one in inputs))
        loss.backward()
        note(f'gradients {step}', [one.grad for one in model.parameters()])
    note('parameters', [*model.parameters()])
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
    print(f'rank {rank}, deepspeed-reentrant: {error!r}', flush=True); os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 8.360147476196289e-05)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, deepspeed-reentrant {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
