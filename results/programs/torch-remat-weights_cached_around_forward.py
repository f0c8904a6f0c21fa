"""torch-remat, law weights_cached_around_forward. Parametrized weights that are cached in forward, and not in backward, make
no wrong gradient: plain's, or an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

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
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 1272.0), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}')
sys.exit(len(wrong) > 0)
