"""plain, law the_process_grows_by_outputs_alone. After forward the process has grown by a region's output, whoever makes
something: torch, numpy or Python."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.ones(9000000, requires_grad=True)
    def megabytes():
        with open('/proc/self/statm') as file:
            return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE') / 1000000.0
    def f(h):
        return h.sin().sin().sin()
    before = megabytes()
    y = checkpoint(f, p)
    grown = megabytes() - before
    note('expected growth of the process by one output', True)
    note('seen growth of the process by one output', grown < 54)

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
