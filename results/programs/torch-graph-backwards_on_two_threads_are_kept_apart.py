"""torch-graph, law backwards_on_two_threads_are_kept_apart. Two backwards at once over graphs that share the tensors have a
call each, with their own gradients."""
import os, sys, threading
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    p, q, r = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    tensors = [p, q]
    late = q.cos()
    loss = late.sum() + p.cos().sum()
    theirs = sum((tensors[i].exp().sum() for i in (0,)))
    mine = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    there = torch.autograd.grad(theirs, tensors, retain_graph=True, allow_unused=True)
    note('expected calls', sorted([mine, there], key=str))
    calls = []
    def hook(grads): calls.append(tuple((g for g in grads)))
    graph.register_multi_grad_hook(tensors, hook, mode='all')
    thread = threading.Thread(target=theirs.backward, daemon=True)
    def meanwhile(grad):
        thread.start()
        thread.join(1)
    late.register_hook(meanwhile)
    loss.backward()
    thread.join()
    note('seen calls', sorted(calls, key=str))
def show(x): return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None): notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(graph, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong: print(f'{label}: {notes[label]}, torch-graph {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
