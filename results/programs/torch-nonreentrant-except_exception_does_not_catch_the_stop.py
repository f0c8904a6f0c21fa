"""torch-nonreentrant, law except_exception_does_not_catch_the_stop. User code that catches any Exception of the last
operator that saves catches none in a recomputation."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

from contextlib import suppress
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    kind = {'Exception': Exception}['Exception']
    def inner(h):
        out = None
        with suppress(kind): out = h.sin()
        if out is None: out = h.tanh() * 5
        return out
    def outer(h): return inner(h)
    y = checkpoint(outer, p * 1)
    y.backward(torch.ones_like(y))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
