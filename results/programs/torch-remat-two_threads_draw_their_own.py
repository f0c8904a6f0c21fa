"""torch-remat, law two_threads_draw_their_own. Two threads that run backward at once, over a graph each, draw the numbers of
their own forward."""
import concurrent.futures, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
import torch_remat
def checkpoint(function, *args, **kwargs):
    options = {name: kwargs.pop(name) for name in ("determinism_check", "preserve_rng_state") if name in kwargs}
    return torch_remat.checkpoint(**options)(function)(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    def f(h):
        return torch.nn.functional.dropout(h.sin(), 0.3).exp()
    outputs = [checkpoint(f, leaf * 1) for leaf in leaves]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda y: y.backward(torch.ones_like(y), retain_graph=True), outputs))
    note('gradients 0', [leaf.grad for leaf in leaves])

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
for label in wrong:
    print(f"{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}")
sys.exit(len(wrong) > 0)
