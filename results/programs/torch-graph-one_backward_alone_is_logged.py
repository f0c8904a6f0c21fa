"""torch-graph, law one_backward_alone_is_logged. Each node that the backward executes is logged once with shape and dtype of
its gradients, and no other backward is."""
import os, sys
sys.excepthook = lambda *error: (sys.__excepthook__(*error), os._exit(2))  # status 1 is for the fault alone
import torch
from contextlib import nullcontext
from torch.autograd import graph
graph.logged_backward = nullcontext

def run(graph, note, device):
    torch.manual_seed(0)
    import logging
    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(record.getMessage())
    p = torch.randn(2, 3, dtype=torch.float64, device=device, requires_grad=True)
    q = torch.randn(2, 3, device=device, requires_grad=True)
    note('leaves', (p, q))
    y, due = (p, [('AccumulateGrad', [2, 3], '64')])
    shape = list(y.shape)
    y, name = (y.sin(), 'Sin')
    size = '64' if y.dtype == torch.float64 else '32'
    if name is None:
        due += [('Unsqueeze', [1, *shape], size), ('Squeeze', shape, size)]
    else:
        due.append((name, list(y.shape), size))
    loss = y.sum()
    due.append(('Sum', [], '64' if y.dtype == torch.float64 else '32'))
    beside = q.cos().sum()
    lines, log, keep = ([], graph.log, Keep())
    before = log.level
    log.addHandler(keep)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    failing = None
    seen = {}
    try:
        loss.backward(retain_graph=True)
        seen['before'] = lines[:]
        lines.clear()
        with graph.logged_backward(loss):
            try:
                loss.backward(retain_graph=True)
            except ZeroDivisionError:
                failing.remove()
                due = due[1:]
            seen['inside'] = lines[:]
            lines.clear()
        loss.backward(retain_graph=True)
        seen['after'] = lines[:]
    finally:
        log.removeHandler(keep)
        log.setLevel(before)
        log.propagate = True
    def matches(line, one):
        name, shape, size = one
        return name in line and str(shape) in line and (f'f{size}' in line or f'float{size}' in line)
    inside = seen.pop('inside')
    expected = due[::-1]
    note('expected lines', len(expected))
    note('seen lines', len(inside))
    note('expected nodes', [True for _ in expected])
    note('seen nodes', [matches(line, one) for line, one in zip(inside, expected, strict=False)])
    note('expected elsewhere', dict.fromkeys(seen, 0))
    note('seen elsewhere', {name: len(found) for name, found in seen.items()})

seen = {}
show = lambda x: (type(x).__name__, x.tolist(), x.requires_grad) if torch.is_tensor(x) else x
note = lambda label, value=None: seen.update({label: str(torch.utils._pytree.tree_map(show, value))})
run(graph, note, "cpu")
labels = [label.removeprefix("expected ") for label in seen if label.startswith("expected ")]
wrong = [label for label in labels if seen["expected " + label] != seen.get("seen " + label)]
for label in wrong:
    print(f"{label}: expected {seen['expected ' + label]}, torch-graph {seen.get('seen ' + label)}")
sys.exit(len(wrong) > 0)
