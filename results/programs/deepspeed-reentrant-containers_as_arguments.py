"""deepspeed-reentrant, law containers_as_arguments. Tensors inside lists, tuples, dicts, namedtuples and dataclasses get
plain's gradients."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(box3):
        a2 = box3[0]
        h4 = torch.sin(a2)
        return h4
    h5 = checkpoint(f1, [p0])
    h6 = h5 * p0
    h6.backward(torch.ones_like(h6))
    note('gradients 0', [p0.grad])

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
