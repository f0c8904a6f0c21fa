"""deepspeed-nonreentrant, law autocast_is_forwards_on_another_thread. A backward on another thread, where no autocast is in
force, recomputes under forward's autocast."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

from concurrent.futures import ThreadPoolExecutor

def run(checkpoint, note, device):
    torch.manual_seed(0)
    x, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    def inner(h):
        return (h @ w).sin().float()
    def outer(h):
        return inner(h) @ w
    with torch.autocast(torch.device(device).type, dtype=getattr(torch, 'float16'), cache_enabled=False):
        y = checkpoint(outer, x)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(y.backward, torch.ones_like(y), retain_graph=True).result()

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs):
    return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try:
        run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong:
    print(f'{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
