"""torch-graph, law what_is_saved_again_is_moved_again_only_if_it_must_be. A tensor that is saved again is copied again if it
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

seen = collections.Counter()

class Moves(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for source in {"_to_copy": args[:1], "copy_": args[1:2]}.get(func.overloadpacket.__name__, ()):
            if source.device.type != result.device.type and result.numel():
                way = "to" if result.device.type == "cpu" else "from"
                seen.update({f"copies {way} the CPU": 1, f"bytes {way} the CPU": result.numel() * result.element_size()})
        return result

with torch._subclasses.FakeTensorMode(), Moves():  # tensors without values: 'lazy' is any second device
    run(graph, lambda label, value=None: None, "cpu")
print("copies to the CPU: due is 1, torch-graph", seen.get("copies to the CPU", 0))
sys.exit(seen.get("copies to the CPU", 0) != 1)
