"""native, law what_is_drawn_after_what_a_policy_keeps. Numbers drawn after others that a selective policy keeps make no
wrong gradient: plain's, or an error."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
def keeping_draws():
    return torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.bernoulli.default])
import torch
from impls.native.api import checkpoint
checkpoint = functools.partial(checkpoint, context_fn=keeping_draws)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(4, 4, device=device, dtype=torch.float64, requires_grad=True)
    def inner(h):
        h = torch.nn.functional.dropout(h, 0.5)
        return h.exp()
    def outer(h):
        h = h * (torch.bernoulli(torch.full_like(h, 0.5)) + 1)
        return inner(h)
    y = checkpoint(outer, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])

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
    print(f'{label}: plain {expected.get(label)}, native {seen.get(label)}')
sys.exit(len(wrong) > 0)
