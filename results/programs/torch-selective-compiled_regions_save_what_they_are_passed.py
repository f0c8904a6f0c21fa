"""torch-selective, law compiled_regions_save_what_they_are_passed. From the forward graph to the backward graph go the
tensors that regions are passed, and no others."""
import functools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
products = [getattr(torch.ops.aten, name).default for name in ("mm", "addmm", "bmm", "baddbmm")]
contexts = functools.partial(create_selective_checkpoint_contexts, products)
@functools.wraps(torch.utils.checkpoint.checkpoint)  # which has the switches in its module
def checkpoint(function, *args, **kwargs):  # another context_fn is a TypeError
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    weights = [torch.randn(3, 3, device=device, requires_grad=True) for _ in range(1)]
    x = torch.randn(2, 3, device=device, requires_grad=True)
    options = {}
    def f(h, w):
        h = (h @ w).sin().exp()
        return h * h
    @torch.compile(backend='aot_eager', fullgraph=True)
    def step(h):
        for w in weights: h = checkpoint(f, h, w, **options)
        return h
    y = step(x)
    leaves = {leaf.untyped_storage()._cdata for leaf in (*weights, x)}
    saved = {one.untyped_storage()._cdata for one in y.grad_fn.saved_tensors}
    note('expected number of tensors', 0 + 0)
    note('seen number of tensors', len(saved - leaves))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(checkpoint, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-selective {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
