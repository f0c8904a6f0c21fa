"""torch-graph, law what_was_on_the_cpu_looks_the_same. Values, strides, dtype, layout and conjugation of a tensor on the
CPU, sparse ones too, are those that were saved."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 3, 4, 4, dtype=None, device=device)
    p = p.requires_grad_()
    x = p[::2,]
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, q):
            ctx.save_for_backward(t)
            return q * 2
        @staticmethod
        def backward(ctx, grad):
            t, = ctx.saved_tensors
            note('read', [t.stride()])
            return (None, grad * 2)
    options = {'pin_memory': True}
    with graph.save_on_cpu(**options):
        y = Reads.apply(x, p)
        y.sum().abs().backward()
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def _nothing(*_, **__): return contextlib.nullcontext()
plain = types.SimpleNamespace(**{**vars(torch.autograd.graph), 'save_on_cpu': _nothing})
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), graph)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}')
sys.exit(len(wrong) > 0)
