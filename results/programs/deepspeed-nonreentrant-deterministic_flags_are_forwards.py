"""deepspeed-nonreentrant, law deterministic_flags_are_forwards. A function sees forward's determinism flags in both runs,
and backward leaves its own in force."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import non_reentrant_checkpoint as checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def flags(): return (torch.are_deterministic_algorithms_enabled(),)
    def switch(to): torch.use_deterministic_algorithms(to != 'off', warn_only=to == 'warn')
    seen = []
    def inner(h):
        seen.append(flags())
        return h.sin()
    def outer(h): return inner(h).exp()
    switch('off')
    y = checkpoint(outer, p * 1)
    switch('on')
    for turn in range(1): y.backward(torch.ones_like(y), retain_graph=turn < 0)
    note('what the functions saw', str(sorted(set(seen))))
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
