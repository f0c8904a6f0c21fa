"""torch-selective, law switches_belong_to_a_thread. What set_checkpoint_debug_enabled or set_checkpoint_early_stop switch on
a thread changes no region of another."""
import functools, inspect, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

from concurrent.futures import ThreadPoolExecutor
def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    early, runs = (True, [])
    def f(h):
        runs.append('begun')
        h = h.cos()
        runs[-1] = 'ended'
        return h
    def on():
        y = checkpoint(f, p * 1, **{'early_stop': True})
        y.backward(y)
        return runs[-1] == 'begun'
    with ThreadPoolExecutor(1) as other:
        with getattr(inspect.getmodule(checkpoint), 'set_checkpoint_early_stop', None)(False):
            seen = other.submit(on).result(10)
    note('expected the option as it was passed', True)
    note('seen the option as it was passed', seen)
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-selective {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
