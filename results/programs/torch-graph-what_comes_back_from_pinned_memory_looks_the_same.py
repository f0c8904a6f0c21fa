"""torch-graph, law what_comes_back_from_pinned_memory_looks_the_same. Through pinned memory too, values, strides, dtype,
device and conjugation are those that were saved."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    device = 'lazy'
    p = torch.randn(2, 3, 4, 4, dtype=None, device=device)
    p = p.requires_grad_()
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
    options = {'device_type': torch.device(device).type}
    with graph.save_on_cpu(**options): Reads.apply(p[1:, ::2], p).sum().abs().backward()
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def _nothing(*_, **__): return contextlib.nullcontext()
plain = types.SimpleNamespace(**{**vars(torch.autograd.graph), 'save_on_cpu': _nothing})
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), graph)):
    try:
        with torch._subclasses.FakeTensorMode(): run(one, note, 'cpu')  # tensors without values: 'lazy' is any second device
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}')
sys.exit(len(wrong) > 0)
