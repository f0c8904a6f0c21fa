"""fairscale, law two_threads_draw_their_own. Two threads that run backward at once, over a graph each, draw the numbers of
their own forward."""
import concurrent.futures, os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from fairscale.nn.checkpoint import checkpoint_wrapper
class Calling(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
    def forward(self, *args, **kwargs): return self.function(*args, **kwargs)
def checkpoint(function, *args, **kwargs): return checkpoint_wrapper(Calling(function))(*args, **kwargs)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    inside, drawn, over = (threading.Event() for _ in range(3))
    calls = []
    def f(h):
        calls.append(None)
        if len(calls) == 3:
            inside.set(); drawn.wait(0.2)
        elif len(calls) == 4:
            drawn.set(); over.wait(0.2)
        return torch.nn.functional.dropout(h.sin(), 0.3).exp()
    def back(y):
        y.backward(y, retain_graph=False); inside.set(); over.set()
    outputs = [checkpoint(f, leaf * 1) for leaf in leaves]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(back, outputs[0]); inside.wait(10); second = pool.submit(back, outputs[1])
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
for label in wrong: print(f'{label}: plain {expected.get(label)}, fairscale {seen.get(label)}')
sys.exit(len(wrong) > 0)
