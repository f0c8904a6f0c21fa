"""deepspeed-nonreentrant, law autocast_is_forwards. A recomputation runs under forward's autocast, nested ones included,
whatever is in force around backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint


def run(checkpoint, note, device):
    torch.manual_seed(0)
    def cast(name):
        kind = torch.device(device).type
        return torch.autocast(kind, enabled=name != 'off', dtype=getattr(torch, name, None), cache_enabled=False)
    leaves = [torch.randn(2, 2, device=device, requires_grad=True) for _ in range(4)]
    x, u, v, w = leaves
    seen = []
    def outer(h):
        seen.append((torch.is_autocast_cache_enabled(),))
        return h.float() @ w
    y = checkpoint(outer, x)
    with cast('off'):
        y.backward(torch.ones_like(y), retain_graph=False)
    note('what the functions saw', str(sorted(map(str, set(seen)))))

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
