"""torch-graph, law what_is_saved_again_is_moved_again_only_if_it_must_be. A result that is saved again is copied again if it
was changed since, or if nothing needs the first copy any more."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    device = 'lazy'
    p = torch.randn(2, 2, device=device, requires_grad=True)
    x = p * 1
    made = []
    with graph.save_on_cpu():
        for number in range(2):
            made.append(x.sin())

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
for label, number in {'copies to the CPU': 1}.items():
    print(f'{label}: due is {number}, torch-graph {seen.get(label, 0)}')
sys.exit(any((seen.get(label, 0) != number for label, number in {'copies to the CPU': 1}.items())))
