"""deepspeed-reentrant, law operators_that_a_region_ends_with. Whatever operator a region ends with, its outputs and
gradients are plain's to the last bit."""
import os, sys, unittest
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

sys.modules.setdefault("expecttest", unittest.case)  # which op_db imports
# SampleInput(input=Tensor[size=(20, 20), device="cpu", dtype=torch.complex128], args=(), kwargs={}, broadcasts_input=False,
# name='')
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
def run(checkpoint, note, device):
    torch.manual_seed(0)
    entry = next((one for one in op_db if one.full_name == 'tan'))
    drawn = next(entry.sample_inputs_func(entry, device, getattr(torch, 'complex128'), True))
    parts, structure = tree_flatten((drawn.input, drawn.args, drawn.kwargs))
    def f(*tensors):
        given, args, kwargs = tree_unflatten([next(iter(tensors)) for one in parts], structure)
        found = tree_leaves(entry.op(given, *args, **kwargs))
        return tuple([found[index] for index in (0,)])
    result = checkpoint(f, *[part for part in parts if torch.is_tensor(part)])
    ys = tree_leaves(result)
    torch.autograd.backward(ys, [torch.linspace(0.5, 1.5, y.numel(), device=device).reshape(y.shape).to(y.dtype) for y in ys])
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 51210.0), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
