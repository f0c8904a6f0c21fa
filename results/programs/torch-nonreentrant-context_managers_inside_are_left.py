"""torch-nonreentrant, law context_managers_inside_are_left. Context managers that a function enters are left in the
recomputation, also when it stops early."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    from contextlib import ExitStack, contextmanager
    p = torch.randn(2, 2, device=device, requires_grad=True)
    level = []
    @contextmanager
    def computing():
        level.append('computing')
        try:
            yield
        finally:
            p.sin()
            level.pop()
    def inner(h):
        with ExitStack() as stack:
            stack.enter_context({'computing': computing}['computing']())
            return h.exp().sin()
    def outer(h):
        return inner(h)
    y = checkpoint(outer, p * 1)
    y.backward(torch.ones_like(y))
    note('levels not left', len(level))
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
