"""deepspeed-nonreentrant, law results_from_a_closure_that_a_function_changes. A function that changes the result of an
operator in its closure in place gives plain's gradients, or an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

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

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs):
    return function(*args, **kwargs) if args or function is not None else lambda f: f
def observe(one):
    leaves, shown = ([], [])
    def note(label, value=None):
        leaves.extend(value if label == 'leaves' else ())
        shown.append([(number, show(leaf.grad)) for number, leaf in enumerate(leaves)])
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
    note('end')
    return shown
expected, seen = ([one for moment in observe(plain) for one in moment], observe(checkpoint)[-1])
due = [f'leaf {number}: {gradient}' for number, gradient in expected]
wrong = [f'leaf {number}: {gradient}' for number, gradient in seen if (number, gradient) not in expected]
print('left behind by deepspeed-nonreentrant:', *wrong, 'which plain never has; it has:', *dict.fromkeys(due), sep='\n  ')
sys.exit(len(wrong) > 0)
