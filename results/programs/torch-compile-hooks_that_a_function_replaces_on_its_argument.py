"""torch-compile, law hooks_that_a_function_replaces_on_its_argument. A hook that the function takes off and registers anew
on its argument is there once, and its last handle removes it."""
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
    p = torch.randn(2, 2, device=device, requires_grad=True)
    handles, fired = ([], [])
    def inner(h): return h.cos() * h
    def f(h):
        h.register_hook(lambda grad: grad * 3)
        handles.append(h.register_post_accumulate_grad_hook(lambda leaf: fired.append(None)))
        return inner(h).tanh()
    for step in range(2):
        y = checkpoint(f, p)
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f'gradients {step} 0', [p.grad])
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 2026 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 2026 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
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
