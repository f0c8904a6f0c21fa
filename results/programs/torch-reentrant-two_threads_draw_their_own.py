"""torch-reentrant, law two_threads_draw_their_own. Two threads that run backward at once, over a graph each, draw the
numbers of their own forward."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=True)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    import threading
    from concurrent.futures import ThreadPoolExecutor
    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    note('leaves', leaves)
    both, drawn = (threading.Event(), threading.Event())
    recomputing, arrived = ([], [])
    def region(me):
        def f(h):
            _ = 0
            if recomputing:
                both.set()
                drawn.wait(0.25)
            h = torch.nn.functional.dropout(h.sin(), 0.3)
            return h.exp()
        return f
    outputs = [checkpoint(region(me), leaf * 1) for me, leaf in enumerate(leaves)]
    recomputing.append(True)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda y: y.backward(torch.ones_like(y), retain_graph=True), outputs))
    note('gradients 0', [leaf.grad for leaf in leaves])

def observe(checkpoint):
    seen = {}
    show = lambda x: (type(x).__name__, [f'{y:.4g}' for y in x.ravel().tolist()], x.requires_grad) if torch.is_tensor(x) else x
    note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
    try:
        run(checkpoint, note, "cpu")
    except Exception as error:
        seen["error"] = print("error:", repr(error)) or "raised"
    return seen

plain = lambda function, *args, **kwargs: function(*args, **kwargs)
expected, seen = observe(plain), observe(checkpoint)
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-reentrant {seen.get(label)}")
sys.exit(len(wrong) > 0)
