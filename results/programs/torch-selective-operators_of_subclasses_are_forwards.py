"""torch-selective, law operators_of_subclasses_are_forwards. A subclass's own operators are called in a recomputation as in
forward, also if backward, as its method, calls none."""
import functools, os, sys, types
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
    class Doubling(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            value = super().__torch_function__(func, types, args, kwargs or {})
            return super().__torch_function__(torch.Tensor.mul, types, (value, 2)) if func is torch.Tensor.sin else value
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def inner(h): return h.sin() * p
    def outer(h): return inner(h).cos()
    y = checkpoint(outer, (p * 1).as_subclass(Doubling)).as_subclass(torch.Tensor)
    loss = y.sum().as_subclass(Doubling)
    for number in range(1):
        loss.backward(retain_graph=number + 1 < 1)
        note(f'gradients {number}', [p.grad])
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
