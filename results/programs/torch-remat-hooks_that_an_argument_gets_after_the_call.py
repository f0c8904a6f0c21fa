"""torch-remat, law hooks_that_an_argument_gets_after_the_call. A hook or ``retain_grad`` that an argument gets after the
call sees no gradient that the function takes of its own."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def put_on(h): h.register_hook(lambda grad: grad * 2)
    def forces(h):
        force, = torch.autograd.grad(h.sin(), h, torch.ones_like(h), create_graph=True)
        return force.tanh()
    x = p
    y = checkpoint(forces, x)
    put_on(x)
    for step in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f'gradients {step}', [p.grad])
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 255.7), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}')
sys.exit(len(wrong) > 0)
