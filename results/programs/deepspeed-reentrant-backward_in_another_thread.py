"""deepspeed-reentrant, law backward_in_another_thread. Forward and backward may run in different threads: gradients are
plain's, and all is freed."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def do(call, there):
        box = []
        def work():
            try:
                box.append(call())
            except Exception as error:
                box.append(error.with_traceback(None))
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
        value = box.pop()
        if isinstance(value, Exception): raise value
        return value
    held = [do(lambda: checkpoint((lambda h: checkpoint(lambda x: x.sin().cos(), h.exp()).tanh()), p), True)]
    for turn in range(2): do(lambda: held[0].backward(torch.ones_like(held[0]), retain_graph=True), True)
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try:
        run(judged, note, "cpu")
    except Exception as error:
        notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
