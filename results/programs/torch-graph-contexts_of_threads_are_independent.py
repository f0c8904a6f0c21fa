"""torch-graph, law contexts_of_threads_are_independent. Two threads can be in a context of their own at the same time, and
leave it in any order."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    import threading
    leaves = [torch.rand(2, 2, device=device, requires_grad=True) for _ in range(2)]
    note('leaves', tuple(leaves))
    expected = [torch.autograd.grad((p * 1).exp().sin().sum(), p) for p in leaves]
    note('expected threads', [grad if runs else None for grad, runs in zip(expected, (True, True), strict=True)])
    entered, go = ([threading.Event() for _ in leaves] for _ in range(2))
    seen = [None, None]
    def work(index):
        try:
            with graph.allow_mutation_on_saved_tensors():
                h = (leaves[index] * 1).exp()
                y = h.sin()
                entered[index].set()
                go[index].wait(10)
                h.detach().mul_(2)
                if (True, True)[index]:
                    seen[index] = torch.autograd.grad(y.sum(), leaves[index])
        except Exception as error:
            seen[index] = f'{type(error).__name__}: {error}'
        finally:
            entered[index].set()
    running = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(2)]
    for thread, there in zip(running, entered, strict=True):
        thread.start()
        there.wait(10)
    for index in (1, 0):
        go[index].set()
        running[index].join()
    note('seen threads', seen)

seen = {}
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in seen if label.startswith("expected ")]
wrong = [label for label in labels if seen["expected " + label] != seen.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {seen['expected ' + label]}, torch-graph {seen.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
