"""torch-graph, law inside_regions_what_they_save_is_moved. Inside a checkpointed region of any kind, what the region saves
is moved to the CPU, each result once, and no more."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    checkpoint = lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=True)
    torch.manual_seed(3)
    x0 = torch.randn(3, 3, dtype=torch.float64, device='lazy').requires_grad_()
    def f1(a2):
        with graph.save_on_cpu():
            h3 = a2 * a2
            def f5(a6):
                h7 = a6 @ a6
                h8 = h7
                return (torch.sub(h8, h7, alpha=2), h8)
            f5_value = checkpoint(f5, h3 * h3)
            h12 = f5_value[0] * f5_value[1]
        return h12
    def f14(a15):
        with graph.save_on_cpu(): h16 = a15 @ a15
        return h16
    h17 = checkpoint(f14, checkpoint(f1, x0))
    h17.backward(h17)
torch.lazy = torch.cpu  # where torch looks for the device's module
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
for label, number in {'copies to the CPU': 8}.items(): print(f'{label}: due is {number}, torch-graph {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'copies to the CPU': 8}.items())))
