"""offload, law buffers_that_higher_order_operators_write_where_no_version_tells. A buffer that a branch of a torch.cond or
the like changes through .data in an offloaded model is plain's."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.offload.model import OffloadModel

def here(tensors): return [tensor.detach().cpu() for tensor in tensors]
from torch._higher_order_ops.cond import cond_op
def run(OffloadModel, note, device):
    torch.manual_seed(0)
    place = device
    def write(t): t.data.mul_(2)
    class Scaling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer('scale', torch.ones(2))
        def forward(self, x):
            x = x.sin() * self.scale.clone()
            cond_op(torch.ones((), dtype=torch.bool), write, torch.clone, (self.scale,))
            return x
    model = OffloadModel([torch.nn.Linear(2, 2), Scaling()], place, num_slices=2, checkpoint_activation=True)
    for step in range(2):
        y = model(torch.randn(3, 2, device=place))
        note(f'forward {step}', here([y]))
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
