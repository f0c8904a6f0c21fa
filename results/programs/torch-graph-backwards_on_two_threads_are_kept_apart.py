"""torch-graph, law backwards_on_two_threads_are_kept_apart. Two backwards at once over graphs that share the tensors have a
call each, with their own gradients."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from torch.autograd import graph

def run(graph, note, device):
    torch.manual_seed(0)
    import threading
    p, q, r = (torch.randn(2, 2, dtype=torch.float64, device=device, requires_grad=True) for _ in range(3))
    note('leaves', (p, q, r))
    tensors = [p, q, r]
    calls, failed = ({}, [])
    half, over = (threading.Event(), threading.Event())
    def hook(grads):
        copy = [g if g is None else g.clone() for g in grads]
        calls.setdefault(threading.current_thread().name, []).append(copy)
    late = q.cos()
    loss = late.sum() + p.cos().sum()
    theirs = sum((tensors[i].exp().sum() for i in (0,)))
    mine = torch.autograd.grad(loss, tensors, retain_graph=True, allow_unused=True)
    there = torch.autograd.grad(theirs, tensors, retain_graph=True, allow_unused=True)
    graph.register_multi_grad_hook(tensors, hook, mode='all')
    def wait(grad):
        half.set()
        over.wait(10)
    late.register_hook(wait)
    def work(name, call):
        threading.current_thread().name = name
        try:
            call()
        except Exception as error:
            failed.append(f'{type(error).__name__}: {error}')
        finally:
            half.set()
    thread = threading.Thread(target=work, args=('one', loss.backward), daemon=True)
    thread.start()
    half.wait(10)
    another = threading.Thread(target=work, args=('two', theirs.backward), daemon=True)
    another.start()
    another.join()
    over.set()
    thread.join()
    note('expected failed', [])
    note('seen failed', failed)
    note('expected one', [list(mine)])
    note('seen one', calls.get('one'))
    note('expected two', [list(there)])
    note('seen two', calls.get('two'))

seen = {}
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in seen if label.startswith("expected ")]
wrong = [label for label in labels if seen["expected " + label] != seen.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {seen['expected ' + label]}, torch-graph {seen.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
