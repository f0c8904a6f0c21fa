"""deepspeed-reentrant, law weights_changed_during_backward. A weight that a hook changes during backward, as an optimizer in
backward does, gives no wrong gradient."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x, p, q = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(3))
    note('leaves', (p,))
    def step(grad):
        p.sub_(grad, alpha=0.1)
    def region(level):
        def f(h):
            h = h * p
            return h.sin()
        return f
    y = checkpoint(region(0), x * 1) * q
    q.register_hook(step)
    for number in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
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
