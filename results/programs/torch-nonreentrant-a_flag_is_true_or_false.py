"""torch-nonreentrant, law a_flag_is_true_or_false. Where preserve_rng_state is a string, a list, a float or None, it is
refused by name."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    ran = []
    def f(h):
        ran.append(True)
    try:
        checkpoint(f, p, preserve_rng_state=0.0)
        note('refused', False)
    except (TypeError, ValueError) as error:
        note('refused', True)

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs):
    return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, torch-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
