"""torch-selective, law results_from_a_closure_that_a_function_changes. A function that changes the result of an operator in
its closure in place gives plain's gradients, or an error."""
import functools, os, sys
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
    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note('leaves', (p, w))
    b = p.exp()
    def inner(h):
        part = b
        part.mul_(w)
        return (h.cos(), b)
    y, z = checkpoint(inner, p)
    (y.sum() + z.sum()).backward()
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def observe(one):
    leaves, shown = ([], [])
    def note(label, value=None):
        leaves.extend(value if label == 'leaves' else ())
        shown.append([(number, show(leaf.grad)) for number, leaf in enumerate(leaves)])
    try: run(one, note, 'cpu')
    except Exception as error: print('error:', repr(error))
    note('end')
    return shown
expected, seen = ([one for moment in observe(plain) for one in moment], observe(checkpoint)[-1])
due = [f'leaf {number}: {gradient}' for number, gradient in expected]
wrong = [f'leaf {number}: {gradient}' for number, gradient in seen if (number, gradient) not in expected]
print('left behind by torch-selective:', *wrong, 'which plain never has; it has:', *dict.fromkeys(due), sep='\n  ')
sys.exit(len(wrong) > 0)
