"""offload, law what_a_module_keeps_is_of_the_whole_batch. With microbatches, a loss or count that a module keeps in an
attribute is that of the whole batch, as are gradients."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from impls.offload.model import OffloadModel

def run(OffloadModel, note, device):
    torch.manual_seed(0)
    place = device
    class Keeping(torch.nn.Module):
        def forward(self, x): self.kept = {'rows': x.shape[0]}['rows']
    layers = [torch.nn.Linear(2, 2), Keeping()]
    more = {'checkpoint_activation': True, 'num_microbatches': 3}
    model = OffloadModel(layers, place, num_slices=2, **more)
    y = model(torch.randn(5, 2, device=place))
    kept = layers[1].kept
    note('kept', kept)
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(model, device, *_, **__):
    whole = model if isinstance(model, torch.nn.Module) else torch.nn.Sequential(*model)
    return whole.to(device)
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 486.9), value)
for notes, one in (((expected := {}), plain), ((seen := {}), OffloadModel)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, offload {seen.get(label)}')
sys.exit(len(wrong) > 0)
