"""torch-graph, law repeated_backwards_leave_nothing_behind. Backward after backward, failed ones among them, there are no
more objects than before."""
import gc, itertools, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    armed = []
    def fail(grad):
        raise ValueError('program')
    def forward():
        late = q.cos()
        late.register_hook(fail)
        return late.sum() + p.cos().sum()
    graph.register_multi_grad_hook([p, q], lambda grads: None, mode='all')
    loss = forward()
    for _ in range(8):
        try:
            loss.backward(retain_graph=True)
        except ValueError:
            armed.clear()
        note('step')

def keeps_growing(growth):
    rises = sum((after > before for before, after in itertools.pairwise(growth)))
    return rises > 0 and 3 * rises >= len(growth) and (growth[-1] > 0)
counts = []
def note(label, value=None):
    gc.collect()
    counts.extend([len(gc.get_objects())] * (label == 'step'))
run(graph, lambda label, value=None: None, 'cpu')
gc.freeze()
run(graph, note, 'cpu')
growth = [count - counts[2] for count in counts[2:]]
print('objects more than after the third step; due: 0; torch-graph:', growth)
sys.exit(keeps_growing(growth))
