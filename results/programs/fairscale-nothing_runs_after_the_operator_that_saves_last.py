"""fairscale, law nothing_runs_after_the_operator_that_saves_last. Whatever operator saves the last tensor that is needed,
and whatever it saves, none after it runs again (rule 5)."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

ran = []
def tail(h):
    ran.append(h)
    return h
def run(checkpoint, note, device):
    torch.manual_seed(0)
    c = torch.rand(3, 3, dtype=torch.float64, device=device)
    x = torch.randn(3, 3, dtype=torch.float64, device=device, requires_grad=True)
    def f(x):
        h = torch.sin(x)
        last = h * c
        end = tail(last)
        return end
    y = checkpoint(f, x)
    y.backward(torch.ones_like(y))
    note('expected tail', 1)
    note('seen tail', len(ran))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, fairscale {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
