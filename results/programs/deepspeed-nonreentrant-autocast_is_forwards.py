"""deepspeed-nonreentrant, law autocast_is_forwards. A recomputation runs under forward's autocast, nested ones included,
whatever is in force around backward."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    cache = False
    def cast(name, cache=cache):
        kind = torch.device(device).type
        return torch.autocast(kind, enabled=name != 'off', dtype=getattr(torch, name, None), cache_enabled=cache)
    leaves = [torch.randn(2, 2, device=device, requires_grad=True) for _ in range(4)]
    x, u, v, w = leaves
    seen = []
    def outer(h):
        seen.append((torch.is_autocast_cache_enabled(),))
        return h.float() @ w
    y = checkpoint(outer, x)
    with cast('off', cache != False):
        for turn in range(1): y.backward(torch.ones_like(y), retain_graph=turn < 0)
    note('what the functions saw', str(sorted(map(str, set(seen)))))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
