"""deepspeed-nonreentrant, law train_and_eval_flipped_before_backward. A module with dropout or batch norm that train() or
eval() flips before backward gives no wrong gradient."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    layer, training = ('norm', False)
    made = {'norm': torch.nn.BatchNorm1d(4)}[layer]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), made, *[torch.nn.Tanh() for _ in range(0)]).to(device).train(training)
    x = torch.randn(3, 4, device=device, requires_grad=True)
    y = checkpoint(model, x)
    model.train(not training)
    y.backward(torch.ones_like(y))
    note('gradients 0', [*(q.grad for q in model.parameters())])

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs):
    return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
