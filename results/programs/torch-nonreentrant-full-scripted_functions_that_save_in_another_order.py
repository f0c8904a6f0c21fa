"""torch-nonreentrant-full, law scripted_functions_that_save_in_another_order. A scripted function that saves alike shapes in
another order from its second call on gets no wrong gradient."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(3, 3, device=device, requires_grad=True) for _ in range(2))
    text = 'def f(a, b):\n    return a.sin() * b.exp()\n'
    f = torch.jit.CompilationUnit(text).f
    def outer(h):
        return f(h * 1.5, q).cos()
    y = checkpoint(outer, p)
    y.backward(torch.ones_like(y))
    note('gradients 0', [q.grad])

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-nonreentrant-full {seen.get(label)}")
sys.exit(len(wrong) > 0)
