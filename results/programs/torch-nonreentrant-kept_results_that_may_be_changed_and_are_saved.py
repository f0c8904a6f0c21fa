"""torch-nonreentrant, law kept_results_that_may_be_changed_and_are_saved. With allow_cache_entry_mutation=True, a kept
result that is changed and then saved makes no wrong gradient."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
def allowing_changes():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.mm.default], allow_cache_entry_mutation=True)
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)
checkpoint = functools.partial(checkpoint, context_fn=allowing_changes)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, w = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(2))
    def inner(h):
        k = h @ w
        k.mul_(2)
        k = k.sin()
        return k
    def outer(h): return inner(h)
    y = checkpoint(outer, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [w.grad])
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
