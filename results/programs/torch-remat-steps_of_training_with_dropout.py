"""torch-remat, law steps_of_training_with_dropout. A model with dropout has plain's weights after each step, and the
optimizer plain's state."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)
        def forward(self, h):
            h = self.linear(h).tanh()
            return torch.nn.functional.dropout(h, 0.5, self.training)
    first, blocks = (device, [Block().to(device) for _ in range(1)])
    for turn in range(3):
        h = torch.randn(3, 2, device=device)
        for block in blocks: h = checkpoint(block, h)
        (torch.nn.functional.mse_loss(h, torch.randn(3, 2, device=device)) / 1).backward()
        note(f'gradients {turn}', [q.grad for q in [q for m in [*blocks] for q in m.parameters()]])
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 1525.0), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
wrong = [label for label in wrong if label.partition(' ')[0] != 'cost']
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}')
sys.exit(len(wrong) > 0)
