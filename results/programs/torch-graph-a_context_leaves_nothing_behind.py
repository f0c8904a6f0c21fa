"""torch-graph, law a_context_leaves_nothing_behind. Step after step in one context there are no more objects than before."""
import gc, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p = torch.rand(2, 2, device=device, requires_grad=True)
    with graph.allow_mutation_on_saved_tensors():
        for _ in range(8):
            x = p * 1
            y = x.exp() * x
            note('step')

counts = []

def note(label, value=None):
    gc.collect()
    counts.extend([len(gc.get_objects())] * (label == "step"))

run(graph, lambda label, value=None: None, "cpu")  # whatever is made once only is made here
gc.freeze()
run(graph, note, "cpu")
growth = [count - counts[2] for count in counts[2:]]
print("objects more than after the third step; due: 0; torch-graph:", growth)
rises = sum(after > before for before, after in zip(growth, growth[1:]))  # one alone may be another thread's
sys.exit(rises > 0 and 3 * rises >= len(growth) and growth[-1] > 0)
