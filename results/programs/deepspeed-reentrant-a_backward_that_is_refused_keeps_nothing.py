"""deepspeed-reentrant, law a_backward_that_is_refused_keeps_nothing. A second backward over a graph that was not retained
raises where plain raises, and leaves nothing alive."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(1)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    p1 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    x0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0, p1, x0, ))
    def forward():
        def f1(a2):
            h3 = torch.sin(a2)
            h4 = h3 * h3
            def f5(a6, a7):
                h8 = torch.sin(a6)
                h9 = h8 + a7
                return h9
            h10 = checkpoint(f5, h4, h3)
            return h10
        h11 = checkpoint(f1, x0)
        h12 = h11 + p1
        return h11, h12,
    graph1 = forward()
    note('held 1', [graph1])
    torch.autograd.backward([graph1[1]], [torch.ones_like(graph1[1])])
    note('gradients 2', [p0.grad, p1.grad, x0.grad])
    note('held 2', [graph1])
    try:
        torch.autograd.backward([graph1[1]], [torch.ones_like(graph1[1])])
        note('attempt 3', 'a value')
    except RuntimeError:
        note('attempt 3', 'raised')
    for leaf in [p0, p1, x0]: leaf.grad = None
    note('held 3', [graph1])
    del graph1
    note('empty 4', [])

def observe(checkpoint):
    leaves, shown = [], []
    show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
    def note(label, value=None):
        leaves.extend(value if label == "leaves" else ())
        shown.append([f"leaf {number}: {show(leaf.grad)}" for number, leaf in enumerate(leaves)])
    try:
        run(checkpoint, note, "cpu")
    except Exception as error:
        print("error:", repr(error))
    note("end")
    return shown

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
expected, seen = sum(observe(plain), []), observe(checkpoint)[-1]
wrong = [gradient for gradient in seen if gradient not in expected]
print("left behind by deepspeed-reentrant:", *wrong, "which plain never has; it has:", *dict.fromkeys(expected), sep="\n  ")
sys.exit(len(wrong) > 0)
