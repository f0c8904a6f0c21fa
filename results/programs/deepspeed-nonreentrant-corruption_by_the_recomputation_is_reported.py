"""deepspeed-nonreentrant, law corruption_by_the_recomputation_is_reported. A recomputation that changes in place a tensor
that was saved, which forward did not do, is an error."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    recomputing = []
    def inner(h):
        k, h = (h, h.cos())
        if ('corrupts' if recomputing else '') == 'corrupts':
            with torch.no_grad():
                k.mul_(2)
        c = torch.full((1,), 3.0, device=device, dtype=h.dtype)
        h = h * c.float()
        return h
    def outer(h):
        return inner(h)
    y = checkpoint(outer, p * 1)
    recomputing.append(True)
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
