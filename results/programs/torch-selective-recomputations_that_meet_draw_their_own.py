"""torch-selective, law recomputations_that_meet_draw_their_own. A recomputation draws its own numbers while another thread
begins one, by the same implementation or by another."""
import functools, os, sys, threading  # threads do not always meet: where it shows nothing, run it again
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
    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    inside, done = ([threading.Event(), threading.Event()] for _ in range(2))
    failed, backward = ([], [])
    def function(index):
        def f(h):
            if backward:
                inside[index].set()
                (done if inside[1 - index].is_set() else inside)[1 - index].wait(5)
            h = torch.nn.functional.dropout(h.sin(), 0.3)
            done[index].set()
            return h.exp()
        return f
    def there(index):
        outputs[index].backward(torch.ones_like(outputs[index]))
        inside[index].set(); done[index].set()
    outputs = [[checkpoint, checkpoint][index]([function(0), function(1)][index], leaves[index] * 1) for index in range(2)]
    backward.append(True); threads = {index: threading.Thread(target=there, args=(index,), daemon=True) for index in (0, 1)}
    for index, thread in threads.items():
        thread.start(); inside[index].wait(10)
    for thread in threads.values(): thread.join()
    note('gradients 0', [leaf.grad for leaf in leaves])
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error)); notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-selective {seen.get(label)}')
sys.exit(len(wrong) > 0)
