"""torch-graph, law hooks_do_not_hide_a_change. A saved tensor that was changed in place after forward is an error under
hooks that bring it back, as it is in plain."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    with graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        def f1(a2):
            h3 = torch.sin(a2)
            return h3
        h4 = checkpoint(f1, p0)
    with torch.no_grad(): p0.mul_(0.5)
    h4.backward(torch.ones_like(h4))

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def _nothing(*_, **__):
    return contextlib.nullcontext()
plain = types.SimpleNamespace(**{**vars(torch.autograd.graph), 'saved_tensors_hooks': _nothing})
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), graph)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}')
sys.exit(len(wrong) > 0)
