"""torch-graph, law around_regions_their_inputs_are_moved. Around checkpointed regions of any kind, tensor inputs are moved
to the CPU, each once, and nothing of the inside."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

import impls
import conformance.second_device

def run(graph, note, device):
    checkpoint = impls.get('legacy').checkpoint
    device = conformance.second_device.second(device)
    torch.manual_seed(0)
    p0 = torch.randn(2, 2, dtype=torch.float64, device=device).requires_grad_()
    note('expected copies to the CPU', 2)
    with conformance.second_device.Moves() as moves:
        with graph.save_on_cpu():
            def f1(a2):
                h3 = torch.sin(a2)
                return h3
            h4 = checkpoint(f1, p0)
            def f5(a6, a7):
                h8 = torch.sin(a6)
                return h8
            h9 = checkpoint(f5, h4, p0)
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
