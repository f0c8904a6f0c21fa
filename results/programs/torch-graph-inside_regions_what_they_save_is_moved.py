"""torch-graph, law inside_regions_what_they_save_is_moved. Inside a checkpointed region of any kind, what the region saves
is moved to the CPU, each tensor once, and no more."""
import collections, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph


def run(graph, note, device):
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    device = 'lazy'
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    def f1(a2):
        with graph.save_on_cpu():
            def f4(a5):
                return (a5 @ a5)
            h7 = checkpoint(f4, (a2 @ a2))
    h8 = checkpoint(f1, p0)

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
print("copies to the CPU: due is 2, torch-graph", seen.get("copies to the CPU", 0))
sys.exit(seen.get("copies to the CPU", 0) != 2)
