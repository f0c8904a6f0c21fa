"""torch-selective, law exported_regions_equal_plain. A module with regions that is exported gives plain's values and
gradients, for other inputs, too."""
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
    w = torch.randn(3, 3, device=device)
    inputs = [torch.randn(2, 3, device=device, requires_grad=True) for _ in range(2)]
    class Model(torch.nn.Module):
        def __init__(self, region):
            super().__init__()
            self.region, self.w = (region, torch.nn.Parameter(w))
        def f(self, h):
            h = (h @ self.w).sin()
            return h
        def forward(self, h):
            h = self.region(lambda h: self.region(self.f, h).exp(), h)
            return h
    def backward(model, x):
        torch.manual_seed(1)
        y = model(x)
        if y.requires_grad: y.backward(y)
        return [*(each.grad for each in model.parameters())]
    for turn, x in enumerate(inputs):
        note(f'expected input {turn}', [backward(Model(lambda g, h: g(h)), x) for x in inputs][turn])
        note(f'seen input {turn}', backward(torch.export.export(Model(checkpoint), (inputs[0],), strict=False).module(), x))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-selective {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
