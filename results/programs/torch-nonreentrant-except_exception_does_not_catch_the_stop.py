"""torch-nonreentrant, law except_exception_does_not_catch_the_stop. User code that handles every Exception of the last
operator that saves never sees one in a recomputation."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    from contextlib import suppress
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def inner(h):
        out = None
        with suppress(Exception):
            out = h.sin()
        if out is None:
            out = h.tanh() * 5
        return out
    def outer(h):
        return inner(h)
    y = checkpoint(outer, p * 1)
    y.backward(torch.ones_like(y))
def observe(checkpoint):
    seen = {}
    show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
    note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
    try:
        run(checkpoint, note, "cpu")
    except Exception as error:
        seen["error"] = print("error:", repr(error)) or "raised"
    return seen
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
expected, seen = observe(plain), observe(checkpoint)
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-nonreentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
