"""offload, law a_buffer_that_a_module_returns_is_the_buffer. What the caller changes in a buffer that a module returns
reaches the module, and what forward changes is seen in it."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.offload.model import OffloadModel

def here(tensors): return [tensor.detach().cpu() for tensor in tensors]
def run(OffloadModel, note, device):
    torch.manual_seed(0)
    place = device
    class Returning(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('scale', torch.ones(2))
        def forward(self, x): return (x * self.scale.clone(), self.scale)
    layers = [torch.nn.Linear(2, 2), Returning()]
    model = OffloadModel(layers, place, offload_device=place, num_slices=2, checkpoint_activation=True)
    for turn in range(2):
        y, scale = model(torch.ones(3, 2, device=place))
        note(f'forward {turn}', here([y]))
        scale.mul_(3)
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
