"""torch-nonreentrant-full, law a_function_runs_inside_of_its_context. The context for a run is entered with grad mode off,
too, and left without an error when the run stops early."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False, early_stop=False)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    log = []
    class Watched:
        def __init__(self, name):
            self.name = name
        def __enter__(self):
            log.append(f'enter {self.name}')
        def __exit__(self, kind, *_):
            log.append(f'leave {self.name}')
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def f(h):
        log.append('run')
    with torch.set_grad_enabled(False):
        y = checkpoint(f, p, context_fn=lambda: (Watched('forward'), Watched('recomputation')))
    runs = ['forward'][:1]
    note('expected order', [step for run in runs for step in (f'enter {run}', 'run', f'leave {run}')])
    note('seen order', log)

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, torch-nonreentrant-full {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
