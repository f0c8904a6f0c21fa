"""torch-selective, law steps_leave_nothing_behind. Step after step, over one retained graph or new ones, failed or not,
there are no more Python objects than before."""
import functools, gc, itertools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def f(h):
        return h.cos()
    def forward():
        y = p * 1
        y = checkpoint(f, y)
        return y
    y = forward()
    for _ in range(12):
        y.backward(torch.ones_like(y), retain_graph=True)
        note('step')

def keeps_growing(growth):
    rises = sum((after > before for before, after in itertools.pairwise(growth)))
    return rises > 0 and 3 * rises >= len(growth) and (growth[-1] > 0)
counts = []
def note(label, value=None):
    gc.collect()
    counts.extend([len(gc.get_objects())] * (label == 'step'))
run(checkpoint, lambda label, value=None: None, 'cpu')
gc.freeze()
run(checkpoint, note, 'cpu')
growth = [count - counts[2] for count in counts[2:]]
print('objects more than after the third step; due: 0; torch-selective:', growth)
sys.exit(keeps_growing(growth))
