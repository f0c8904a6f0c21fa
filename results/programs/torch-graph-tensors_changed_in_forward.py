"""torch-graph, law tensors_changed_in_forward. Tensors that forward changes in place after they were saved give the
gradients of the values that were saved."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    with graph.allow_mutation_on_saved_tensors():
        def f1(a2):
            h3 = p0 @ a2
            h4 = h3 + torch.sin(h3[1:]).sum()
            h5 = torch.sin(h4)
            h3.mul_(0.5)
            return h5
        h6 = checkpoint(f1, p0)
        h6.backward(torch.ones_like(h6))
        note('gradients 0', [p0.grad])
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
