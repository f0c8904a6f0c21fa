"""torch-graph, law inside_regions_what_they_save_is_moved. Inside a checkpointed region of any kind, what the region saves
is moved to the CPU, each tensor once, and no more."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

import impls
import conformance.second_device

def run(graph, note, device):
    checkpoint = impls.get('legacy').checkpoint
    device = conformance.second_device.second(device)
    torch.manual_seed(1)
    p0 = torch.randn(3, 3, dtype=torch.float64, device=device).requires_grad_()
    note('expected copies to the CPU', 1)
    with conformance.second_device.Moves() as moves:
        def f1(a2):
            with graph.save_on_cpu():
                h3 = torch.tanh(a2)
                h4 = torch.cos(h3)
            return h4
        h5 = checkpoint(f1, p0)
        h5.backward(torch.ones_like(h5))
    note('seen copies to the CPU', sum(move.bytes > 0 and move.kind.endswith('cpu') for move in moves.seen))

seen = {}
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
def note(label, value=None):
    with torch.utils._python_dispatch._disable_current_modes():
        seen[label] = str(torch.utils._pytree.tree_map(show, value))
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in seen if label.startswith("expected ")]
wrong = [label for label in labels if seen["expected " + label] != seen.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {seen['expected ' + label]}, torch-graph {seen.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
