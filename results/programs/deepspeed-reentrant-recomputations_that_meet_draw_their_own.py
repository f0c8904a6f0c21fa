"""deepspeed-reentrant, law recomputations_that_meet_draw_their_own. A recomputation draws its own numbers while another
thread begins one, by the same implementation or by another."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint

def run(checkpoint, note, device):
    torch.manual_seed(0)
    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    inside, done = ([threading.Event(), threading.Event()] for _ in range(2))
    failed, backward = ([], [])
    def function(index):
        def f(h):
            if backward:
                inside[index].set()
                (done if inside[1 - index].is_set() else inside)[1 - index].wait(5)
            h = torch.nn.functional.dropout(h.sin(), 0.3)
            if backward: done[index].set()
            return h.exp()
        return f
    def there(index):
        outputs[index].backward(torch.ones_like(outputs[index]))
        inside[index].set()
        done[index].set()
    outputs = [[checkpoint, checkpoint][index]([function(0), function(1)][index], leaves[index] * 1) for index in range(2)]
    backward.append(True); threads = {index: threading.Thread(target=there, args=(index,), daemon=True) for index in (0, 1)}
    for index, thread in threads.items():
        thread.start(); inside[index].wait(10)
    for thread in threads.values(): thread.join()
    note('gradients 0', [leaf.grad for leaf in leaves])
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 262.0), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error)); notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, deepspeed-reentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
