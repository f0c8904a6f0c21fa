"""deepspeed-reentrant, law exported_regions_equal_plain. A module with regions that is exported gives plain's values and
gradients, for other inputs, too."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

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
            h = self.region(self.f, h)
            return h
    def backward(model, x):
        torch.manual_seed(1)
        y = model(x)
        if y.requires_grad: y.backward(y)
        found = [*(each.grad for each in model.parameters())]
        return found
    due = [backward(Model(lambda g, h: g(h)), x) for x in inputs]
    for turn, x in enumerate(inputs):
        note(f'expected input {turn}', due[turn])
        note(f'seen input {turn}', backward(torch.export.export(Model(checkpoint), (inputs[0],), strict=False).module(), x))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, deepspeed-reentrant {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
