"""torch-remat, law scripted_functions_that_specialise. A scripted or traced function, which specialises after its first
call, gets no wrong gradient: plain's, or an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(3, 3, device=device, requires_grad=True) for _ in range(2))
    text = 'def f(a, b):\n    return (a * b).sin().exp() * torch.tanh(a)\n'
    f = torch.jit.CompilationUnit(text).f
    def outer(h):
        return f(h * 1.5, q).cos()
    y = checkpoint(outer, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [q.grad])

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
class Near(tuple):  # equal but for 152.1 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 152.1 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}")
sys.exit(len(wrong) > 0)
