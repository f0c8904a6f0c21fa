"""torch-selective, law operators_with_all_their_arguments. An operator that is a region by itself, with its arguments as
they are, has plain's outputs and gradients."""
import functools, os, sys, unittest
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

# SampleInput(input=Tensor[size=(), device="cpu", dtype=torch.float64], args=(), kwargs={'lower': '0.0', 'upper': '1.0',
# 'training': 'True'}, broadcasts_input=False, name='')
sys.modules.setdefault('expecttest', unittest.case)
from itertools import islice
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
def run(checkpoint, note, device):
    torch.manual_seed(0)
    entry = next((one for one in op_db if one.full_name == 'nn.functional.rrelu'))
    drawn = next(islice(entry.sample_inputs_func(entry, device, getattr(torch, 'float64'), True), 2, None))
    parts, structure = tree_flatten((drawn.input, drawn.args, drawn.kwargs))
    given, args, kwargs = tree_unflatten(parts, structure)
    result = checkpoint(entry.op, given, *args, **kwargs)
    ys = [tree_leaves(result)[index] for index in (0,)]
    torch.autograd.backward(ys, [torch.linspace(0.5, 1.5, y.numel(), device=device).reshape(y.shape).to(y.dtype) for y in ys])
    note('gradients 0', [leaf.grad for leaf in [part for part in parts if torch.is_tensor(part)] if leaf.requires_grad])
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
