"""native, law weights_cached_around_forward. Parametrized weights that are cached in forward, and not in backward, make no
wrong gradient: plain's, or an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.native.api import checkpoint

from torch.nn.utils import parametrize
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Exponential(torch.nn.Module):
        def forward(self, w): return w.exp()
    ms = [torch.nn.Linear(2, 2, bias=False).to(device, torch.float64) for _ in range(1)]
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    for m in ms: parametrize.register_parametrization(m, 'weight', Exponential())
    ws = [m.parametrizations.weight.original for m in ms]
    h = p * 1
    with parametrize.cached():
        for _ in range(2): h = checkpoint(lambda h, m=m: m(h), h)
    h.backward(torch.ones_like(h))
    note('gradients 0', [*[w.grad for w in ws]])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, native {seen.get(label)}')
sys.exit(len(wrong) > 0)
