"""torch-selective, law masks_in_graphs_that_are_not_compiled. With the backend "eager", which only captures graphs, regions
with dropout draw as they do in other graphs."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(3, 3, device=device, requires_grad=True)
    def f(h): return torch.nn.functional.dropout(h.sin(), 0.5)
    def all_of_them(region):
        h = p
        h = region(f, h)
        return h
    def seeded(run):
        torch.manual_seed(1)
        y = run()
        y.backward(torch.ones_like(y))
        found = [torch.rand(2, device=device)]
        return found
    due = seeded(lambda: all_of_them(lambda g, h: g(h)))
    note('expected gradient', due[:2])
    found = seeded(torch.compile(lambda: all_of_them(checkpoint), backend='eager', fullgraph=True))
    note('seen gradient', found[:2])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-selective {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
