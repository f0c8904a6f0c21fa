"""deepspeed-nonreentrant, law graph_breaks_change_no_number. A graph break inside of a region, or between two, changes no
value, no gradient and no random number."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 3, device=device, requires_grad=True)
    def f(h):
        h = torch.nn.functional.dropout(h, 0.5)
        return h.exp()
    def all_of_it(region):
        h = region(f, p)
        return region(f, h)
    def seeded(run):
        torch.manual_seed(1)
        y = run()
        y.backward(torch.ones_like(y))
        found = [p.grad]
        p.grad = None
        return found
    due = seeded(lambda: all_of_it(lambda g, h: g(h)))
    note('expected call', due)
    note('seen call', seeded(torch.compile(lambda: all_of_it(checkpoint), backend='aot_eager')))

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, deepspeed-nonreentrant {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
