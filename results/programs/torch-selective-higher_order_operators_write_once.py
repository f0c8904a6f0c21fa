"""torch-selective, law higher_order_operators_write_once. A tensor from outside that a branch of a torch.cond or the like
changes, and nothing saves, is what plain leaves."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

from torch._higher_order_ops.wrap import wrap
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    calls = torch.zeros(2, device=device)
    def count(t): return t.add_(1).clone()
    def inner(h):
        wrap(count, calls)
        return h.sin().exp()
    y = checkpoint(inner, p)
    y.backward(torch.ones_like(y))
    note('calls after backward', calls)
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-selective {seen.get(label)}')
sys.exit(len(wrong) > 0)
