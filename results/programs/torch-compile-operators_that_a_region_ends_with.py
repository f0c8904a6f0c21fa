"""torch-compile, law operators_that_a_region_ends_with. Whatever operator a region ends with, its outputs and gradients are
plain's to the last bit."""
import os, sys, unittest
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs): return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling(): return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

sys.modules.setdefault("expecttest", unittest.case)  # which op_db imports
# SampleInput(input=Tensor[size=(20,), device="cpu", dtype=torch.float64], args=(), kwargs={'lower': '0.0', 'upper': '1.0',
# 'training': 'True'}, broadcasts_input=False, name='')
from itertools import islice
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
def run(checkpoint, note, device):
    torch.manual_seed(0)
    entry = next((one for one in op_db if one.full_name == 'nn.functional.rrelu'))
    drawn = next(islice(entry.sample_inputs_func(entry, device, torch.float64, True), 0, None))
    parts, structure = tree_flatten((drawn.input, drawn.args, drawn.kwargs))
    leaves = [part for part in parts if torch.is_tensor(part)]
    def f(*tensors):
        given, args, kwargs = tree_unflatten([one for one in parts], structure)
        return tuple([tree_leaves(entry.op(given, *args, **kwargs))[index] for index in (0,)])
    ys = tree_leaves(checkpoint(f, *leaves))
    torch.autograd.backward(ys, [torch.linspace(0.5, 1.5, y.numel(), device=device).reshape(y.shape).to(y.dtype) for y in ys])
    note('gradients 0', [leaf.grad for leaf in leaves if leaf.requires_grad])
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 3.466e+04 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 3.466e+04 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try: run(judged, note, "cpu")
    except Exception as error: notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, torch-compile {seen.get(label)}")
sys.exit(len(wrong) > 0)
