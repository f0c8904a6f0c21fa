"""torch-reentrant, law early_stop_is_switched_around_forward. The innermost set_checkpoint_early_stop around forward
overrides early_stop, and an error ends it."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def region():
        ends = []
        def f(h):
            ends.append(True)
            return h
        return (checkpoint(f, p * 1, early_stop=True), ends)
    made = []
    made.append(region())
    made.append(region())
    made.append(region())
    for y, _ in made:
        y.backward(torch.ones_like(y))
    due = [1 for stops in (True, True, True)]
    note('expected runs to the end in the inner context, in the outer one and after both', due)
    note('seen runs to the end in the inner context, in the outer one and after both', [len(ends) for _, ends in made])

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, torch-reentrant {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
