"""torch-selective, law modes_that_a_function_sets. A function may set default dtype or determinism, for itself or for good,
and backward leaves its own in force."""
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
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def switch(to): torch.use_deterministic_algorithms(to > 0, warn_only=to == 2)
    def modes():
        flags = (torch.is_deterministic_algorithms_warn_only_enabled(),)
        return (flags,)
    def inner(h):
        switch(2)
        h = (h * torch.full((2,), 0.1, device=device).to(h.dtype)).sin()
        return h + 1
    def outer(h): return inner(h.cos())
    y = checkpoint(outer, p * 1)
    switch(0)
    y.backward(torch.ones_like(y))
    note('modes after backward', modes())
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
