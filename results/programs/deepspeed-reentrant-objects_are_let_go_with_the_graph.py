"""deepspeed-reentrant, law objects_are_let_go_with_the_graph. What a region is passed or its function holds that is no
tensor is let go with the outputs, at once."""
import os, sys, weakref
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    class Setting: power = 3
    p = torch.randn(2, 2, device=device, requires_grad=True)
    def inner(h, setting): return h.sin() ** setting.power
    def forward():
        setting = Setting()
        passed = setting
        def outer(h, given=passed): return inner(h.exp(), given).cos()
        return (checkpoint(outer, p), weakref.ref(setting))
    y, there = forward()
    for turn in range(2): y.backward(torch.ones_like(y), retain_graph=True)
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 102.3), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
