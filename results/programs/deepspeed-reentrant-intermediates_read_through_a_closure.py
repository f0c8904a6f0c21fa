"""deepspeed-reentrant, law intermediates_read_through_a_closure. A value computed outside a region and read through a
closure gets its gradient."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('leaves', (p0,))
    h3 = torch.sin(p0)
    def f1(a2):
        h4 = torch.sin(h3)
        return h4
    h5 = checkpoint(f1, p0)
    torch.autograd.backward([h5, h3], [torch.ones_like(h5), torch.ones_like(h3)])

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
