"""deepspeed-reentrant, law fsdp_with_shared_weights. Units whose weights a forward uses twice, by another call or in another
layer, have plain's shards after some steps. torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

from torch.distributed.fsdp import fully_shard
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Sequential):
        def forward(self, h): return h + super().forward(h)
    class Model(torch.nn.Sequential):
        def forward(self, h):
            for block in [*self, *[self[0]]]: h = checkpoint(block, h)
            return h
    model = Model(*(Block(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)) for _ in range(2)))
    for block in model: fully_shard(block, reshard_after_forward=True)
    fully_shard(model, reshard_after_forward=True)
    parameters = [*model.parameters()]
    torch.manual_seed(1 + dist.get_rank())
    for step in range(2):
        x = torch.randn(3, 4, requires_grad=True)
        model(x * 1).square().mean().backward()
        note(f'gradients {step}', [*(one.grad.to_local() for one in parameters)])
    note('whole parameters', [one.full_tensor() for one in parameters])
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
    print(f'rank {rank}, deepspeed-reentrant: {error!r}', flush=True); os._exit(1)
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 4.553794860839844e-05)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, deepspeed-reentrant {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
