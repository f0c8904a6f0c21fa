"""offload, law autocast_casts_a_weight_once. Under autocast a weight that is used twice gets the gradient that it gets where
it is cast once for both."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.offload.model import OffloadModel

def here(tensors): return [tensor.detach().cpu() for tensor in tensors]
class Tied(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.there = torch.nn.Linear(width, width)
        self.back = torch.nn.Linear(width, width, bias=False)
        self.back.weight = self.there.weight
    def forward(self, x): return self.back(self.there(x).tanh())
def run(OffloadModel, note, device):
    torch.manual_seed(0)
    place = device
    layers = []
    def build():
        layers[:] = [Tied(1)]
        return OffloadModel(torch.nn.Sequential(*layers), place, num_slices=1)
    def batch(): return torch.randn(2, 1, device=place)
    model, x = build(), batch()
    with torch.autocast(torch.device(place).type, torch.bfloat16, cache_enabled=True): y = model(x)
    y.float().square().sum().backward()
    note('gradients', here((p.grad for p in model.parameters() if p.requires_grad)))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(model, device, *_, **__):
    whole = model if isinstance(model, torch.nn.Module) else torch.nn.Sequential(*model)
    return whole.to(device)
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), OffloadModel)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, offload {seen.get(label)}')
sys.exit(len(wrong) > 0)
