"""torch-remat, law the_same_call_draws_anew. A function called again on the same tensors draws other numbers, and each
recomputation those of its call."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(4, 4, device=device, requires_grad=True)
    def f(h):
        return torch.nn.functional.dropout(h.sin(), 0.5)
    outputs = [p]
    h = p
    outputs.append(checkpoint(f, h))
    y = sum(outputs[1:])
    y.backward(torch.ones_like(y))
    note('gradients 0', [p.grad])

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
