"""plain, law a_copied_module_is_checkpointed_as_well. If a module's forward was replaced by its checkpointed one, so is a
copy's, with the weights of the copy."""
import copy, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.plain import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh()).to(device)
    m.forward = checkpoint(preserve_rng_state=False)(m.forward)
    twin = copy.deepcopy(m)
    ran = []
    twin[0].register_forward_hook(lambda *_: ran.append(1))
    p = torch.randn(2, 2, device=device, requires_grad=True)
    y = twin(p)
    y.backward(torch.ones_like(y))
    note('seen calls of the copy', len(ran))
    note('expected calls of the copy', 2)

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, plain {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
