"""torch-nonreentrant, law deterministic_flags_are_forwards. A function sees forward's determinism flags in both runs, and
backward leaves its own in force."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note('leaves', (p,))
    def flags():
        return (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
    def switch(to):
        torch.use_deterministic_algorithms(to != 'off', warn_only=to == 'warn')
    seen = []
    def inner(h):
        seen.append(flags())
        return h.sin()
    def outer(h):
        seen.append(flags())
        return inner(h).exp()
    try:
        switch('off')
        y = checkpoint(outer, p * 1)
        note('forward', y)
        switch('on')
        y.backward(torch.ones_like(y), retain_graph=False)
        note('flags after backward', flags())
    finally:
        switch('off')
    note('gradients 0', [p.grad])
    note('what the functions saw', str(sorted(set(seen))))

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
