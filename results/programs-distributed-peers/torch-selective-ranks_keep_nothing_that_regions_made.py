"""torch-selective, law ranks_keep_nothing_that_regions_made. After forward and after backward nothing that a region made is
alive on any rank but its inputs and outputs. torchrun --nproc-per-node 2 shows it."""
# The law measures more than this script does, which only prints what the program notes. What was found:
# rank 0: at 'held 0' 2 storages that regions made are alive; expected: 0
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (torch.nn.Linear(4, 6), torch.nn.Linear(6, 4))
        def inner(self, h):
            h = torch.tanh(self.first(h))
            return torch.sin(self.second(h))
        def forward(self, h): return checkpoint(self.inner, h)
    blocks = [Block() for _ in range(1)]
    model = torch.nn.Sequential(*blocks)
    whole = model
    torch.manual_seed(1 + dist.get_rank())
    for step in range(1):
        x = torch.randn(3, 4, requires_grad=True)
        between = []
        keep = between.append
        handles = [block.register_forward_hook(lambda _, given, y, keep=keep: keep((given, y))) for block in blocks]
        loss = whole(x).square().mean()
        for handle in handles: handle.remove()
        note(f'held {step}', [x, loss, between])
        loss.backward()
        between.clear()
        note(f'gradients {step}', [x.grad]); note(f'empty {step}', [x, loss]); model.zero_grad()
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
dist.init_process_group("gloo"); rank = dist.get_rank()
for which, one in (('plain', plain), ('torch-selective', checkpoint)):
    run(one, lambda label, value=None, which=which: print(f'rank {rank}, {label}: {which} {value}', flush=True), 'cpu')
dist.barrier(); os._exit(0)
