"""torch-reentrant, law debug_is_switched_around_forward. The innermost set_checkpoint_debug_enabled around forward overrides
debug, None does not, and an error ends it."""
import functools, inspect, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    switch = getattr(inspect.getmodule(getattr(checkpoint, 'func', checkpoint)), 'set_checkpoint_debug_enabled', None)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def region():
        runs = []
        def f(h):
            runs.append(True)
            h = h.cos()
            return h.tanh() if len(runs) == 1 else h[:1].sigmoid()
        return checkpoint(f, p * 1, debug=False)
    made = []
    with switch(True):
        made.append(region())
        made.append(region())
    made.append(region())
    def listed(y):
        try: y.backward(torch.ones_like(y))
        except RuntimeError as error: return [name for name in ('aten.cos', 'aten.tanh', 'aten.sigmoid') if name in str(error)]
    every = ['aten.cos', 'aten.tanh', 'aten.sigmoid']
    due = [override for override in (True, True, None)]
    note('expected operators listed in the inner context, in the outer one and after both', [every if on else [] for on in due])
    note('seen operators listed in the inner context, in the outer one and after both', [listed(y) for y in made])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-reentrant {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
