"""offload, law gradients_of_offloaded_models_are_no_weights. A custom Function whose backward returns a leaf that it saved
makes .grad a copy of it: changing one leaves the other."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.offload.model import OffloadModel

def run(OffloadModel, note, device):
    torch.manual_seed(0)
    place = device
    class Score(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or (x * w).sum())
        backward = staticmethod(lambda ctx, grad: ctx.saved_tensors[::-1])
    class Owner(torch.nn.Linear):
        forward = lambda self, x: Score.apply(x, self.weight)
    model = OffloadModel([Owner(2, 1, bias=False)], place, num_slices=1, checkpoint_activation=False)
    x = torch.tensor([[1.0, 2.0]], device=place, requires_grad=True)
    for turn in range(2):
        model(x).backward()
    note('parameters', [x.detach().cpu()])

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(model, device, *_, **__):
    whole = model if isinstance(model, torch.nn.Module) else torch.nn.Sequential(*model)
    return whole.to(device)
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), OffloadModel)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, offload {seen.get(label)}')
sys.exit(len(wrong) > 0)
