"""torch-nonreentrant-full, law what_a_function_changes_where_it_runs_on. What a function changes in place after it was saved
is as in forward, also where a recomputation does not stop early."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    layer = torch.nn.Linear(2, 2).to(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    class Relaxed(torch.nn.Module):
        def forward(self, h):
            d = torch.full_like(h, 0.5).requires_grad_()
            g, = torch.autograd.grad(layer(h.detach() + d * d).tanh().sum(), d)
            d.data.add_(g)
            return layer(h + d.detach()).sin()
    m = Relaxed()
    f = m
    y = checkpoint(f, p)
    note('forward', y)

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
    print(f'{label}: plain {expected.get(label)}, torch-nonreentrant-full {seen.get(label)}')
sys.exit(len(wrong) > 0)
