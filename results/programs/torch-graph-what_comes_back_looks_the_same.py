"""torch-graph, law what_comes_back_looks_the_same. Values, strides, dtype, device and conjugation of a dense tensor that was
moved are those that were saved."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    device = 'lazy'
    p = torch.randn(2, 3, 4, 4, dtype=torch.complex64, device=device)
    p = p.requires_grad_()
    x = p.conj()
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t, q):
            ctx.save_for_backward(t)
            return q * 2
        @staticmethod
        def backward(ctx, grad):
            t, = ctx.saved_tensors
            flags = [t.is_conj()]
            note('read', [flags])
            return (None, grad * 2)
    options = {}
    with graph.save_on_cpu(**options):
        y = Reads.apply(x, p)
        y.sum().abs().backward()
plain = types.SimpleNamespace(**vars(torch.autograd.graph) | {"save_on_cpu": lambda *args, **kwargs: contextlib.nullcontext()})
show = lambda x: (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, graph):
    try:
        with torch._subclasses.FakeTensorMode(): run(judged, note, "cpu")  # tensors without values: 'lazy' is any second device
    except Exception as error: notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}")
sys.exit(len(wrong) > 0)
