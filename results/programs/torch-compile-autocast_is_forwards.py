"""torch-compile, law autocast_is_forwards. A recomputation runs under forward's autocast, nested ones included, whatever is
in force around backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs): return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling(): return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)
def run(checkpoint, note, device):
    torch.manual_seed(0)
    cache = False
    def cast(name, cache=cache):
        kind = torch.device(device).type
        return torch.autocast(kind, enabled=name != 'off', dtype=getattr(torch, name, None), cache_enabled=cache)
    leaves = [torch.randn(2, 2, device=device, requires_grad=True) for _ in range(4)]
    x, u, v, w = leaves
    def inner(h): return (h @ v).sin()
    def outer(h):
        h = h @ u
        h = checkpoint(inner, h.float())
        return h.float() @ w
    y = checkpoint(outer, x)
    with cast('float16', cache != False):
        for turn in range(1):
            y.backward(y, retain_graph=turn < 0)
            note(f'gradients {turn}', [leaf.grad for leaf in leaves])
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 73.25), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-compile {seen.get(label)}')
sys.exit(len(wrong) > 0)
