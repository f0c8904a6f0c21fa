"""torch-graph, law what_is_saved_again_is_moved_again_only_if_it_must_be. A tensor that is saved again is copied again if it
was changed since, or if nothing needs the first copy any more."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    from conformance.second_device import Moves, second
    device = second(device)
    p = torch.randn(2, 2, device=device, requires_grad=True)
    x = p * 1
    made = []
    with Moves() as moves, graph.save_on_cpu():
        for number in range(2):
            made.append(x.sin())
    note('expected copies', 1)
    note('seen copies', len(moves.seen))

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
