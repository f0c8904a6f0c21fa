"""torch-remat, law hooks_that_a_function_registers_on_its_arguments_node. Hooks that the function registers on the node of
its argument, before or after it runs, are there once."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

from torch.autograd.graph import get_gradient_edge
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    fired = []
    def inner(h): return h.cos() * h
    def f(h):
        node = get_gradient_edge(h).node
        node.register_hook(lambda gradients, outputs: fired.append(None))
        return inner(h).tanh()
    y = checkpoint(f, p)
    y.backward(torch.ones_like(y), retain_graph=True)
    note('hooks fired 0', len(fired))
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 96.47 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 96.47 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try: run(judged, note, "cpu")
    except Exception as error: notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}")
sys.exit(len(wrong) > 0)
