"""torch-nonreentrant, law switches_belong_to_a_thread. What set_checkpoint_debug_enabled or set_checkpoint_early_stop switch
on a thread changes no region of another."""
import functools, inspect, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)

from concurrent.futures import ThreadPoolExecutor
def run(checkpoint, note, device):
    torch.manual_seed(0)
    override = getattr(inspect.getmodule(getattr(checkpoint, 'func', checkpoint)), 'set_checkpoint_early_stop', None)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    early, runs = (True, [])
    options = {'early_stop': True}
    def f(h):
        runs.append('begun')
        h = h.cos()
        runs[-1] = 'ended'
        return h
    def on():
        y = checkpoint(f, p * 1, **options)
        y.backward(torch.ones_like(y))
        return runs[-1] == 'begun'
    with ThreadPoolExecutor(1) as other:
        with override(False): seen = other.submit(on).result(10)
    note('expected the option as it was passed', True)
    note('seen the option as it was passed', seen)
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-nonreentrant {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
