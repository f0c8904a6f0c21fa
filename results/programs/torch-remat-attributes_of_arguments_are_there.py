"""torch-remat, law attributes_of_arguments_are_there. A Python attribute of an argument, a tensor or not, is there in the
recomputation too, and outputs keep theirs."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(2, 2, device=device))
    x = {'leaf': torch.randn(2, 2, device=device)}['leaf']
    def inner(a):
        return (a * p).sin() * getattr(a, 'scale', 1.0)
    def outer(a):
        y = inner(a).cos()
        y.made = 2.0
        return y
    y = checkpoint(outer, x)
    note('attribute of the output', getattr(y, 'made', None))

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
    print(f"{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}")
sys.exit(len(wrong) > 0)
