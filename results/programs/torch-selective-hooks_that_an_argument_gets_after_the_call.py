"""torch-selective, law hooks_that_an_argument_gets_after_the_call. A hook or ``retain_grad`` that an argument gets after the
call sees no gradient that the function takes of its own."""
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
    fired, alive, done = ([], [], [])
    def put_on(h): h.register_hook(lambda grad: fired.append(None))
    def forces(h):
        force, = torch.autograd.grad(h.sin(), h, torch.ones_like(h), create_graph=True)
        return force.tanh()
    x = p
    y = checkpoint(forces, x)
    put_on(x)
    for step in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f'hooks fired {step}', len(fired))
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
