"""deepspeed-reentrant, law no_operators_are_seen_but_the_functions. A dispatch mode around forward sees plain's operators,
and around backward plain's and those of forward again."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

from collections import Counter
from torch.utils._python_dispatch import TorchDispatchMode
def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Log(TorchDispatchMode):
        def __init__(self): self.seen = Counter()
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen[str(func)] += 1
            return func(*args, **kwargs or {})
    x, w = (torch.rand(3, 3, device=device, requires_grad=True) for _ in range(2))
    def inner(h):
        h = (h * w).tanh()
        return h + 1
    def run(through):
        def outer(h):
            h = inner(h)
            return (h, h.sin())
        with Log() as forward: ys = through(outer, x)
        with Log() as backward: ys[-1].backward(torch.ones_like(ys[-1]))
        return (forward.seen, backward.seen)
    def hooked(function, *args): return function(*args)
    (due, _), (_, due_in_backward) = (run(lambda function, *args: function(*args)), run(hooked))
    forward, backward = run(checkpoint)
    note('expected operators of nobody in backward', [])
    note('seen operators of nobody in backward', sorted((name for name in (backward - due_in_backward) if name not in due)))
notes = {}
class Near(tuple):  # equal but for 33.07 units in the last place: sums may be taken in another order
    __eq__ = lambda a, b: len(a) == len(b) and all(abs(x - y) <= 33.07 * a[0] or repr(x) == repr(y) for x, y in zip(a, b))
near = lambda x: Near([torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
show = lambda x: (type(x).__name__, x.dtype, x.layout, near(x), x.requires_grad) if torch.is_tensor(x) else str(x)
note = lambda label, value=None: notes.update({label: torch.utils._pytree.tree_map(show, value)})
run(checkpoint, note, "cpu")
labels = [label.removeprefix("expected ") for label in notes if label.startswith("expected ")]
wrong = [label for label in labels if notes["expected " + label] != notes.get("seen " + label)]
for label in wrong: print(f"{label}: expected {notes['expected ' + label]}, deepspeed-reentrant {notes.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
