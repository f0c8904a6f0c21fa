"""deepspeed-nonreentrant, law compiled_autograd_over_eager_regions. A backward that compiled autograd compiles, over a
region that ran eagerly, gives plain's gradients, each time."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

from torch._dynamo import config
from torch._dynamo.utils import counters
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 3, device=device, requires_grad=True)
    w = torch.randn(3, 3, device=device, requires_grad=True)
    def f(h): return h * w
    def backward(y):
        y.backward(torch.ones_like(y))
        return y
    def seeded(step):
        torch.manual_seed(1)
        found = [[step() for _ in range(1)][-1], p.grad, w.grad]
        p.grad = w.grad = None
        return found
    due = seeded(lambda: backward(f(p)))
    note('expected call', due)
    note('gradients 0', due[1:])
    counters.clear()
    with config.patch(compiled_autograd=True):
        compiled = torch.compile(backward, backend='aot_eager')
        note('seen call', seeded(lambda: compiled(checkpoint(f, p))))
    note('expected a captured backward', True)
    note('seen a captured backward', counters['compiled_autograd']['captures'] > 0)
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, deepspeed-nonreentrant {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
