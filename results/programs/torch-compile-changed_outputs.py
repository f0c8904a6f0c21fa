"""torch-compile, law changed_outputs. An output that its operator saved gives an error each time once it was changed, also
after a backward, as in plain."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch._dynamo
torch.utils._python_dispatch.TorchDispatchMode.ignore_compile_internals = classmethod(lambda cls: True)  # modes only watch
def region(function, *args, **kwargs):
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
def checkpoint(function, *args, **kwargs):
    if torch.compiler.is_compiling():
        return region(function, *args, **kwargs)  # belongs to what is being compiled
    with torch._dynamo.config.patch(skip_fwd_side_effects_in_bwd_under_checkpoint=True):
        return torch.compile(type(region)(region.__code__.replace(), globals()), backend="aot_eager")(function, *args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def f(h):
        return h.sin().tanh()
    y = checkpoint(f, p * 1)
    y.mul_(2)
    y.backward(torch.ones_like(y))

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
    print(f"{label}: plain {expected.get(label)}, torch-compile {seen.get(label)}")
sys.exit(len(wrong) > 0)
