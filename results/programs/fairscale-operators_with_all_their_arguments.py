"""fairscale, law operators_with_all_their_arguments. An operator that is a region by itself, with its arguments as they are,
has plain's outputs and gradients."""
import os, sys, unittest
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

sys.modules.setdefault("expecttest", unittest.case)  # which op_db imports
# SampleInput(input=Tensor[size=(1, 2), device="cpu", dtype=torch.float64], args=((2),Tensor[size=(2,), device="cpu",
# dtype=torch.float64],None,1e-05), kwargs={}, broadcasts_input=False, name='')
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten
def run(checkpoint, note, device):
    torch.manual_seed(0)
    entry = next((one for one in op_db if one.full_name == 'native_layer_norm'))
    drawn = next(entry.sample_inputs_func(entry, device, getattr(torch, 'float64'), True))
    parts, structure = tree_flatten((drawn.input, drawn.args, drawn.kwargs))
    given, args, kwargs = tree_unflatten(parts, structure)
    note('forward', checkpoint(entry.op, given, *args, **kwargs))
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 15690.0), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, fairscale {seen.get(label)}')
sys.exit(len(wrong) > 0)
