"""plain, law options_alone_give_a_decorator. Without a function, options give a decorator for functions and methods; a
decorated function gets every keyword."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    ends = []
    decorator = checkpoint(early_stop=False)
    def body(h, factor, debug):
        h = (h * factor).sin() * debug.sin()
        ends.append(None)
        return h
    named = decorator(lambda h, *, self, debug: body(h, self, debug))
    def f(h, *, debug):
        return named(h, self=3, debug=debug)
    y = p
    y = f(y, debug=q)
    y.backward(torch.ones_like(y))
    note('seen calls that came to their end', len(ends))
    note('expected calls that came to their end', 2)

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, plain {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
