"""deepspeed-reentrant, law arguments_look_the_same. Type, dtype, requires_grad, is_leaf and layout of arguments, and which
of them are one object, are forward's."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Kind(torch.Tensor):
        pass
    q = torch.randn(2, 2, device=device, requires_grad=True)
    special = torch.ones(2, 2, device=device).as_subclass(Kind)
    seen = []
    def look(*tensors):
        same = [[one is other for one in tensors] for other in tensors]
        seen.append(str((same,)))
    def inner(a, b, c, d, e):
        look(a, b, c, d, e)
        return (a * b).sin() * c * d.as_subclass(torch.Tensor) * e
    def outer(a, b, c, d, e):
        y = inner(a, b, c, d, e)
        return y.cos()
    y = checkpoint(outer, q, q, torch.nn.Parameter(torch.randn(2, 2, device=device)), special, torch.ones(2, 2, device=device))
    y.backward(torch.ones_like(y))
    note('what the functions saw', str(sorted(set(seen))))
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
