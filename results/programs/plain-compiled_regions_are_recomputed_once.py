"""plain, law compiled_regions_are_recomputed_once. The backward graph runs each operator again that backward needs the
result of, once, as eager regions do."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

from collections import Counter
from torch.utils._python_dispatch import TorchDispatchMode
def run(checkpoint, note, device):
    torch.manual_seed(0)
    x = torch.randn(2, 3, device=device, requires_grad=True)
    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            found[func.overloadpacket.__name__] += 1
            return func(*args, **kwargs or {})
    found = Counter()
    def f(h):
        h = h.sin().exp()
        return h * h
    @torch.compile(backend='aot_eager', fullgraph=True)
    def step(h):
        h = checkpoint(f, h, **{})
        return h
    y = step(x)
    with Count(): y.backward(y)
    note('expected sines', 1)
    note('seen sines', found['sin'])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, plain {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
