"""torch-graph, law each_tensor_is_moved_once. A tensor is copied to the CPU once, however often it is saved, and at most
once back for each time that it is read."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

import conformance.second_device

def run(graph, note, device):
    checkpoint = lambda function, *args, **kwargs: function(*args, **kwargs)
    device = conformance.second_device.second(device)
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    with graph.save_on_cpu():
        def f1(a2):
            h3 = a2 * a2
        h4 = checkpoint(f1, p0)

with conformance.second_device.Moves() as moves:
    run(graph, lambda label, value=None: None, "cpu")
out = [move.bytes for move in moves.seen if move.kind.endswith("cpu") and move.bytes]
back = [move.bytes for move in moves.seen if not move.kind.endswith("cpu") and move.bytes]
seen = {"copies to the CPU": len(out), "bytes to the CPU": sum(out), "copies from the CPU": len(back)}
print("copies to the CPU: due is 1, torch-graph", seen.get("copies to the CPU", 0))
sys.exit(seen.get("copies to the CPU", 0) != 1)
