"""torch-selective, law regions_of_other_kinds_that_ranks_recompute_in_another_order. If ranks call backward in different
orders, ranks do not wait in collectives of different kinds that only forward has. torchrun --nproc-per-node 2 shows it."""
import faulthandler, functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch.distributed as dist
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

import time
from datetime import timedelta
def run(checkpoint, note, device):
    torch.manual_seed(0)
    limit = 2
    group = dist.new_group(timeout=timedelta(seconds=limit))
    def exchanged(kind, h):
        made = [h.detach().clone() for _ in range(dist.get_world_size())]
        begun = time.monotonic()
        try:
            if kind == 'sum':
                dist.all_reduce(made[0], group=group)
            elif kind == 'gather':
                dist.all_gather(made, made[0].clone(), group=group)
            else:
                dist.all_to_all_single(made[0], made[1], group=group)
        except RuntimeError:
            if time.monotonic() - begun >= limit: note('waited up to the limit', True)
            raise
        return made[0] + 0
    def first(h): return torch.sin(h * exchanged('sum', torch.sin(h)))
    def second(h): return torch.cos(h * exchanged('gather', torch.cos(h)) * 2)
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(4 * dist.get_world_size(), requires_grad=True)
    y = torch.randn(4 * dist.get_world_size(), requires_grad=True)
    one, other = (checkpoint(first, x), checkpoint(second, y)); note('forward', [one, other])
    if dist.get_rank() % 2: one, other = (other, one)
    one.sum().backward(); other.sum().backward(); note('gradients', [x.grad, y.grad])
dist.init_process_group("gloo")
import faulthandler
faulthandler.dump_traceback_later(30, exit=True)
run(checkpoint, lambda label, value=None: None, 'cpu'); faulthandler.cancel_dump_traceback_later(); os._exit(0)
