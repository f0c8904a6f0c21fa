"""deepspeed-reentrant, law a_callable_of_any_kind_makes_no_cycle. A module, bound method, partial or lambda is freed with
the outputs, and what it holds with it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    class Block(torch.nn.Module):
        def forward(self, h):
            return (h * self.scale).sin().cos()
    def forward():
        block = Block()
        block.scale = torch.full((2,), 2.0, device=device)
        return checkpoint(lambda h: block(h), p)
    y = forward()
    for turn in range(3):
        y.backward(torch.ones_like(y), retain_graph=True)

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
