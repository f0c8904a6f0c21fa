"""deepspeed-reentrant, law pipelines_of_regions. A pipeline whose stages are made of regions trains as with plain regions.
torchrun --nproc-per-node 2 shows it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

from torch.distributed.pipelining import PipelineStage, schedules
def run(checkpoint, note, device):
    torch.manual_seed(0)
    rank, world = (dist.get_rank(), dist.get_world_size())
    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList((torch.nn.Linear(4, 4) for _ in range(1)))
        def forward(self, h):
            for layer in self.layers: h = checkpoint(lambda h, layer=layer: torch.sin(torch.tanh(layer(h))), h)
            return h
    numbers = [rank]
    parts = [Part() for _ in range(world * (1 + False))]
    mine = [parts[number] for number in numbers]
    stages = [PipelineStage(part, number, len(parts), torch.device(device)) for part, number in zip(mine, numbers, strict=True)]
    made = getattr(schedules, 'Schedule1F1B')(stages[0], 2, loss_fn=torch.nn.functional.mse_loss)
    parameters = [one for part in mine for one in part.parameters()]
    for step in range(2):
        x, y = (torch.randn(4, 4), torch.randn(4, 4))
        losses = []
        made.step(x, target=y, losses=losses); note(f'gradients {step}', [one.grad for one in parameters])
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
wrong = [label for label, value in expected.items() if differ(value, seen.get(label), 7.517337799072266e-06)]
for label in wrong: print(f'rank {rank}, {label}: plain {expected[label]}, deepspeed-reentrant {seen.get(label)}', flush=True)
dist.barrier(); os._exit(len(wrong) > 0)
