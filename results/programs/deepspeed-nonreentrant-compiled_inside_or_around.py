"""deepspeed-nonreentrant, law compiled_inside_or_around. Whether a region is compiled, what it calls, or both, also inside
another region, changes no number: or it is refused."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    options = {}
    w = torch.randn(3, 3, device=device, requires_grad=True)
    inputs = [torch.randn(each, 3, device=device, requires_grad=True) for each in (7,)]
    def f(h):
        return (h @ w).sin()
    def backward(outputs):
        torch.autograd.backward(outputs, [torch.ones_like(y) for y in outputs])
    inside = f
    step = lambda x: checkpoint(inside, x, **options).tanh()
    step = torch.compile(step, backend='aot_eager')
    note('seen outputs', backward([step(x) for x in inputs]))

try:
    run(checkpoint, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; deepspeed-nonreentrant raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
