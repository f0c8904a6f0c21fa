"""torch-graph, law what_is_on_the_cpu_stays_as_it_is. For tensors on the CPU gradients equal plain's, whatever was saved and
however they are asked for."""
import contextlib, os, sys, types
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.bfloat16, device=device).requires_grad_()
    with graph.save_on_cpu(pin_memory=True):
        def f1(a2):
            h3 = torch.sin(a2)
            return h3
        def f5(a6):
            h7 = torch.sin(a6)
            h8 = torch.nn.functional.rrelu(h7, training=True)
            return h8
        h9 = checkpoint(f5, checkpoint(f1, p0))
    h9.backward(torch.ones_like(h9))
    note('gradients 0', [p0.grad])

def observe(graph):
    seen = {}
    show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
    note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
    try:
        run(graph, note, "cpu")
    except Exception as error:
        seen["error"] = print("error:", repr(error)) or "raised"
    return seen

plain = types.SimpleNamespace(**vars(torch.autograd.graph) | {"save_on_cpu": lambda *args, **kwargs: contextlib.nullcontext()})
expected, seen = observe(plain), observe(graph)
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-graph {seen.get(label)}")
sys.exit(len(wrong) > 0)
