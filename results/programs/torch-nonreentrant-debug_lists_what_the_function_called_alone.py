"""torch-nonreentrant, law debug_lists_what_the_function_called_alone. With debug=True the error lists no operator that the
function did not call, such as those that save a tensor."""
import functools, os, re, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.utils.checkpoint import checkpoint
checkpoint = functools.partial(checkpoint, use_reentrant=False)
checkpoint = functools.partial(checkpoint, debug=True)

def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    runs, called = ([], {'mul', 'sin', 'cos', 'tanh', 'sigmoid', 'slice'})
    def inner(h):
        runs.append(True)
        return h.tanh() if len(runs) == 1 else h[:1].sigmoid()
    y = checkpoint(lambda h: inner(h), p * 1)
    listed = set()
    try: y.backward(torch.ones_like(y))
    except RuntimeError as error: listed = {*re.findall('aten\\.(\\w+)', str(error))}
    note('listed and not called', sorted(listed - called))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
def plain(function=None, *args, **kwargs): return function(*args, **kwargs) if args or function is not None else lambda f: f
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
for notes, one in (((expected := {}), plain), ((seen := {}), checkpoint)):
    try: run(one, note, 'cpu')
    except Exception as error:
        print('error:', repr(error))
        notes['error'] = 'raised'
wrong = [label for label in expected | seen if expected.get(label) != seen.get(label)]
for label in wrong: print(f'{label}: plain {expected.get(label)}, torch-nonreentrant {seen.get(label)}')
sys.exit(len(wrong) > 0)
