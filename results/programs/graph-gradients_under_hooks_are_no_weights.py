"""graph, law gradients_under_hooks_are_no_weights. Under hooks, a custom Function whose backward returns a leaf that it
saved makes .grad a copy of it."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import impls
graph = impls.get('graph').subject

def run(graph, note, device):
    torch.manual_seed(0)
    class Score(torch.autograd.Function):
        forward = staticmethod(lambda ctx, x, w: ctx.save_for_backward(x, w) or (x * w).sum())
        backward = staticmethod(lambda ctx, grad: ctx.saved_tensors[::-1])
    x, w = (torch.tensor([number], device=device, requires_grad=True) for number in (2.0, 3.0))
    opened = graph.save_on_cpu()
    with opened:
        for turn in range(2):
            y = Score.apply(x, w)
            y.backward()
    note('parameters', [w])

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
    print(f'{label}: plain {expected.get(label)}, graph {seen.get(label)}')
sys.exit(len(wrong) > 0)
