"""torch-graph, law saving_on_the_cpu_notices_any_change. Whatever wrote to a saved tensor on the CPU, input or output,
backward raises, as in plain."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    x = p * 1
    with graph.save_on_cpu():
        y = torch.sin(x)
    t = x.detach()
    t.mul_(2)
    y.backward(torch.ones_like(y))

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def _nothing(*_, **__):
    return contextlib.nullcontext()
plain = types.SimpleNamespace(**{**vars(torch.autograd.graph), 'save_on_cpu': _nothing})
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
