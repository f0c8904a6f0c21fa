"""torch-nonreentrant-full, law options_alone_give_a_decorator. Without a function, options give a decorator for functions
and methods; a decorated function gets every keyword."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    decorator = checkpoint(early_stop=True)
    def body(h, factor, debug):
        h = (h * factor).sin() * debug.sin()
    named = decorator(lambda h, *, self, debug: body(h, self, debug))
    def f(h, *, debug):
        return named(h, self=3, debug=debug)
    y = p
    y = f(y, debug=q)

try:
    run(checkpoint, lambda label, value=None: None, 'cpu')
except BaseException as error:
    print('expected no error; torch-nonreentrant-full raised', repr(error))
    sys.exit(1)
print('expected no error, and there is none')
