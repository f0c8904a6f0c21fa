"""torch-selective, law no_operators_are_seen_but_the_functions. A dispatch mode around forward sees plain's operators, and
around backward plain's and those of forward again."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

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
    def run(through):
        def outer(h):
            h = h.cos()
            return h
        with Log() as forward: ys = through(outer, x)
        backward = Log()
        with backward: ys[-1].backward(torch.ones_like(ys[-1]))
        return (forward.seen, backward.seen)
    def hooked(function, *args):
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor): return function(*args)
    (due, _), (_, due_in_backward) = (run(lambda function, *args: function(*args)), run(hooked))
    forward, backward = run(checkpoint)
    again = backward - due_in_backward
    note('expected operators of nobody in backward', [])
    note('seen operators of nobody in backward', sorted((name for name in again if name not in due or 'detach' in name)))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-selective {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
