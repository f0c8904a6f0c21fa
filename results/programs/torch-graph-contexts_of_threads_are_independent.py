"""torch-graph, law contexts_of_threads_are_independent. Two threads can be in a context of their own at the same time, and
leave it in any order."""
import concurrent.futures, os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    leaves = [torch.rand(2, 2, device=device, requires_grad=True) for _ in range(2)]
    expected = [torch.autograd.grad((p * 1).exp().sin().sum(), p) for p in leaves]
    note('expected threads', [['inside', grad] for grad, runs in zip(expected, (True, True), strict=True)])
    def work(leaf, runs):
        try:
            with graph.allow_mutation_on_saved_tensors():
                h = (leaf * 1).exp()
                y = h.sin()
                yield 'inside'
                yield torch.autograd.grad(y.sum(), leaf)
        except Exception as error:
            yield repr(error)
    works = [work(leaf, runs) for leaf, runs in zip(leaves, (True, True), strict=True)]
    threads = [concurrent.futures.ThreadPoolExecutor(1) for _ in works]
    seen = [[thread.submit(next, one).result()] for thread, one in zip(threads, works, strict=True)]
    for index in (1, 0):
        seen[index] += threads[index].submit(list, works[index]).result()
    note('seen threads', seen)

def show(x):
    return (type(x).__name__, x.dtype, x.layout, x.to_dense().tolist(), x.requires_grad) if torch.is_tensor(x) else x
notes = {}
def note(label, value=None):
    notes[label] = str(torch.utils._pytree.tree_map(show, value))
run(graph, note, 'cpu')
others = {label: label.replace('expected', 'seen', 1) for label in notes if label.startswith('expected ')}
wrong = [label for label, other in others.items() if notes[label] != notes.get(other)]
for label in wrong:
    print(f'{label}: {notes[label]}, torch-graph {notes.get(others[label])}')
sys.exit(len(wrong) > 0)
