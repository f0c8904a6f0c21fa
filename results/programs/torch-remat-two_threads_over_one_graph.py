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
    note('leaves', (p,))
    def inner(h):
        time.sleep(0.01)
        return (h * p).sin()
    held = [p * 1]
    for _ in range(1): held.append(checkpoint(inner, held[-1]))
    note('held 0', held)
    start = threading.Barrier(2); failed = []
    def backward():
        start.wait(10)
        try: held[-1].backward(torch.ones_like(held[-1]), retain_graph=True)
        except Exception as error: failed.append(error.with_traceback(None))
    threads = [threading.Thread(target=backward, daemon=True) for _ in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if failed:
        p.grad = None; raise failed[0]
    note('gradients 0', [p.grad]); torch.ones_like(held[-1]); note('gradients 1', [p.grad]); held.clear(); note('empty', [])
class Near(tuple):
    def __eq__(self, other):
        return len(self) == len(other) and all((abs(x - y) <= self[0] or repr(x) == repr(y) for x, y in zip(self, other)))
def numbers(x, units): return Near([units * torch.finfo((x * 1.0).dtype).eps, *x.to_dense().ravel().tolist()])
def near(x, units): return (type(x), x.dtype, x.layout, numbers(x, units), x.requires_grad) if torch.is_tensor(x) else str(x)
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = torch.utils._pytree.tree_map(lambda x: near(x, 426.1), value)
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error)); notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-remat {seen.get(label)}')
sys.exit(len(wrong) > 0)
