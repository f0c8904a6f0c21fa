"""torch-graph, law around_regions_their_inputs_are_moved. Around checkpointed regions of any kind, their tensor inputs are
moved to the CPU, and nothing of the inside is."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    checkpoint = lambda *args: torch.utils.checkpoint.checkpoint(*args, use_reentrant=False)
    device = 'lazy'
    torch.manual_seed(0)
    x0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    with graph.save_on_cpu():
        def f1(a2):
            h3 = torch.sin(a2)
            return h3
        h4 = checkpoint(f1, x0)
        def f6(a7, a8): return torch.sin(a7)
        h10 = checkpoint(f6, torch.sin(h4), h4)
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
for label, number in {'copies to the CPU': 3}.items(): print(f'{label}: due is {number}, torch-graph {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'copies to the CPU': 3}.items())))
