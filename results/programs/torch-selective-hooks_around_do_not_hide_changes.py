"""torch-selective, law hooks_around_do_not_hide_changes. Saved-tensor hooks around a region do not turn the error for a
change in place into a wrong gradient."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

from contextlib import suppress

def run(checkpoint, note, device):
    torch.manual_seed(0)
    graph = torch.autograd.graph
    p, x = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(2))
    def f(h):
        return (h * p).exp()
    expected = torch.autograd.grad(f(x * 1).sum(), (p, x))
    a = x * 1
    with graph.save_on_cpu():
        y = checkpoint(f, a)
    {'argument': a}['argument'].mul_(2)
    with suppress(RuntimeError):
        y.backward(torch.ones_like(y))
    pairs = zip((p, x), expected, strict=True)
    note('right or none', [leaf.grad is None or torch.equal(leaf.grad, one) for leaf, one in pairs])

seen = {}
run(checkpoint, lambda label, value=None: seen.update({label: str(value)}), 'cpu')
for label, number in {'right or none': '[True, True]'}.items():
    print(f'{label}: due is {number}, torch-selective {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'right or none': '[True, True]'}.items())))
