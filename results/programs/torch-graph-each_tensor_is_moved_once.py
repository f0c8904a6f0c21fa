"""torch-graph, law each_tensor_is_moved_once. A result is copied to the CPU once, however often it is saved, a leaf once a
save, and back at most once a reading."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

class SaveOutput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x
        ctx.save_for_backward(None, y)
        return y
class ReadTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x)
def run(graph, note, device):
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device='lazy').requires_grad_()
    with graph.save_on_cpu():
        def f1(a2): h5 = ReadTwice.apply(SaveOutput.apply(torch.sin(a2)))
        h6 = (lambda function, *args, **kwargs: function(*args, **kwargs))(f1, p0)
def copied(func, args, result):
    sources = {torch.ops.aten._to_copy.default: args[:1], torch.ops.aten.copy_.default: args[1:2]}.get(func, ())
    return [source for source in sources if source.device.type != result.device.type]
class Moves(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **kwargs or {})
        for one in filter(torch.numel, copied(func, args, result)):
            way = 'to' if result.device.type == 'cpu' else 'from'
            self.seen.update({f'copies {way} the CPU': 1, f'bytes {way} the CPU': one.numel() * result.element_size()})
        return result
seen = collections.Counter()
with torch._subclasses.FakeTensorMode(), Moves(seen):  # tensors without values: 'lazy' is any second device
    run(graph, lambda label, value=None: None, 'cpu')
for label, number in {'copies to the CPU': 2}.items(): print(f'{label}: due is {number}, torch-graph {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'copies to the CPU': 2}.items())))
