"""torch-graph, law changes_beside_checkpointed_regions. Beside checkpointed regions of any kind a changed tensor gives the
gradients of its saved value."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    p, q = (torch.rand(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(2))
    def inner(h): return h * h
    def region(h): return checkpoint(inner, h.cos()).exp()
    with graph.allow_mutation_on_saved_tensors():
        a = q * 1
        y = checkpoint(region, p * 1) * a
        for turn in range(1):
            a[1].zero_()
            y.backward(torch.ones_like(y), retain_graph=turn < 0)
            note(f'gradients {turn}', [p.grad])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
@contextlib.contextmanager
def _clone_whatever_is_saved():
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.detach().clone(), lambda tensor: tensor): yield
plain = types.SimpleNamespace(**{**vars(torch.autograd.graph), 'allow_mutation_on_saved_tensors': _clone_whatever_is_saved})
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), graph)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}')
sys.exit(len(wrong) > 0)
