"""torch-remat, law options_of_compiled_regions_are_kept_or_refused. An option that a compiled region is given does what it
does eagerly, in each call, or is refused by its name."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 3, device=device, requires_grad=True)
    def step(h):
        return checkpoint(lambda h: torch.nn.functional.dropout(h, 0.5), h, **{'preserve_rng_state': False})
    def seeded(run):
        torch.manual_seed(1)
        p.grad, y = (None, run(p))
        y.backward(torch.ones_like(y))
        return [y, p.grad, torch.rand(2, device=device)]
    try:
        due = seeded(step)
    except TypeError:
        due = ['no such option']
    note('expected call', due)
    note('seen call', seeded(torch.compile(step, backend='aot_eager', fullgraph=True)))

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, torch-remat {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
