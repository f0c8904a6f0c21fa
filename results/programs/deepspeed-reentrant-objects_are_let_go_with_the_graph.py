"""deepspeed-reentrant, law objects_are_let_go_with_the_graph. What a region is passed or its function holds that is no
tensor is let go with the outputs, at once."""
import os, sys, weakref
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Setting:
        power = 3
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def inner(h, setting):
        return h.sin() ** setting.power
    def forward():
        setting = Setting()
        passed = setting
        def outer(h, given=passed):
            return inner(h.exp(), given).cos()
        return (checkpoint(outer, p), weakref.ref(setting))
    y, there = forward()
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
