"""torch-remat, law operators_that_a_region_begins_with. Whatever operator a region begins with, its outputs and gradients
are plain's to the last bit."""
import os, sys, unittest
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

sys.modules.setdefault("expecttest", unittest.case)  # which op_db imports
# SampleInput(input=Tensor[size=(0, 0), device="cpu", dtype=torch.float64], args=TensorList[Tensor[size=(0, 0), device="cpu",
# dtype=torch.float64], Tensor[size=(0, 0), device="cpu", dtype=torch.float64]], kwargs={'alpha': '0.6', 'beta': '0.2'},
# broadcasts_input=False, name='')
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
def run(checkpoint, note, device):
    torch.manual_seed(0)
    entry = next((one for one in op_db if one.full_name == 'sparse.sampled_addmm'))
    drawn = next(entry.sample_inputs_func(entry, device, getattr(torch, 'float64'), True))
    parts, structure = tree_flatten((drawn.input, drawn.args, drawn.kwargs))
    def f(*tensors):
        given, args, kwargs = tree_unflatten([one for one in parts], structure)
        found = tree_leaves(given)
        kept = [found[index] * found[index] for index in (0,)]
        return kept
    result = checkpoint(f, *[part for part in parts if torch.is_tensor(part)])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}')
sys.exit(len(wrong) > 0)
