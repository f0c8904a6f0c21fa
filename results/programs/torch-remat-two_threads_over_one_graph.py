"""torch-remat, law two_threads_over_one_graph. Two threads may go backward over one retained graph at once: gradients are
plain's, and all is freed."""
import os, sys, threading, time  # threads do not always meet: where it shows nothing, run it again
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def inner(h):
        time.sleep(0.01)
        return (h)
    held = [p]
    held.append(checkpoint(inner, held[-1]))
    failed = []
    def backward():
        try: held[-1].backward(held[-1], retain_graph=True)
        except Exception as error: failed.append(error.with_traceback(None))
    threads = [threading.Thread(target=backward, daemon=True) for _ in range(2)]
    for thread in threads: thread.start()
    thread.join()
    if failed:
        p.grad = None
        raise failed[0]
plain = lambda function, *args, **kwargs: function(*args, **kwargs)
show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: notes.update({label: str(torch.utils._pytree.tree_map(show, value))})
expected, seen = {}, {}
for notes, judged in (expected, plain), (seen, checkpoint):
    try: run(judged, note, "cpu")
    except Exception as error: notes["error"] = print("error:", repr(error)) or "raised"
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f"{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}")
sys.exit(len(wrong) > 0)
