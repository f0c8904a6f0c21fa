"""offload, law a_saved_leaf_of_an_offloaded_model_is_itself. In the backward of a custom Function ctx.saved_tensors has the
model's parameter, with its attributes and its .grad."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.offload.model import OffloadModel

def run(OffloadModel, note, device):
    torch.manual_seed(0)
    place = device
    class Multiply(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or x * w)
        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            w.grad = grad * x
            return (grad * w, None)
    class Owner(torch.nn.Linear): forward = lambda self, x: Multiply.apply(x, self.weight).sin()
    owner = Owner(2, 1, bias=False)
    model = OffloadModel([owner], place, num_slices=1, checkpoint_activation=True)
    x = torch.tensor([[2.0]], device=place, requires_grad=True)
    model(x).sum().backward()
    w, = model.parameters()
    note('gradients 0', [None if w.grad is None else w.grad.cpu()])
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
