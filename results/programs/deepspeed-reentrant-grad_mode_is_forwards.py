"""deepspeed-reentrant, law grad_mode_is_forwards. A function sees grad mode on in both runs, whatever is in force around
forward and around backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint


def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    seen = []
    def inner(h):
        seen.append((torch.is_grad_enabled(),))
        scale = h.cos()
        return h.sin() * scale
    def outer(h):
        return inner(h).tanh()
    y = checkpoint(outer, p * 1)
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
