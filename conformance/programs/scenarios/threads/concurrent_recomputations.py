"""Programs in which recomputations on two threads meet."""

from __future__ import annotations

from typing import Any

import torch


def beside(checkpoint: Any, note: Any, device: str, *, other: str, first: bool, seconds: float, nested: bool) -> None:
    import threading

    import impls

    leaves = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2)]
    note("leaves", leaves)
    checkpoints = [checkpoint, impls.get(other).checkpoint if other else checkpoint]
    inside, done = ([threading.Event(), threading.Event()] for _ in range(2))
    failed, backward = [], []

    def function(index):
        def f(h):
            h = torch.nn.functional.dropout(h.cos(), 0.3)
            if backward:  # the one that comes second lets the first draw next, if both can be inside at all
                inside[index].set()
                (done if inside[1 - index].is_set() else inside)[1 - index].wait(seconds)
            h = torch.nn.functional.dropout(h.sin(), 0.3)
            if backward:
                done[index].set()
            return h.exp()
        return f

    def there(index):
        try:
            outputs[index].backward(torch.ones_like(outputs[index]))
        except Exception as error:
            failed.append(error.with_traceback(None))
        inside[index].set()
        done[index].set()

    outer = [lambda h: checkpoint(function(0), h.sin()).sin(), lambda h: function(1)(h.sin()).sin()]
    functions = outer if nested else [function(0), function(1)]
    outputs = [checkpoints[index](functions[index], leaves[index] * 1) for index in range(2)]
    note("forward", outputs)
    backward.append(True)
    threads = {index: threading.Thread(target=there, args=(index,), daemon=True) for index in ((0, 1) if first else (1, 0))}
    for index, thread in threads.items():
        thread.start()
        inside[index].wait(10)  # the next begins while this one recomputes, or when it is over
    for thread in threads.values():
        thread.join()
    if failed:
        for leaf in leaves:
            leaf.grad = None
        raise failed[0]
    note("gradients 0", [leaf.grad for leaf in leaves])
    note("stream after backward", torch.rand(2, device=device))


def joining(checkpoint: Any, note: Any, device: str, *, other: str, pool: bool, passes: int) -> None:
    import concurrent.futures
    import threading

    import impls

    dropout = torch.nn.functional.dropout
    p, q = (torch.randn(4, 4, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    failed = []

    def inner(h):
        return dropout(dropout(h, 0.3).sin(), 0.3)

    def there():
        q.grad = None  # it is the same each time
        try:
            z.backward(torch.ones_like(z), retain_graph=True)
        except Exception as error:
            failed.append(error.with_traceback(None))

    def f(h):
        h = dropout(h, 0.3)
        if pool:
            with concurrent.futures.ThreadPoolExecutor(1) as threads:
                threads.submit(there).result()
        else:
            thread = threading.Thread(target=there, daemon=True)
            thread.start()
            thread.join()
        return dropout(h.cos(), 0.3)

    z = (impls.get(other).checkpoint if other else checkpoint)(inner, q * 1)
    y = checkpoint(f, p * 1)
    note("forward", [y, z])
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        if failed:
            raise failed[0]
        note(f"gradients {turn}", [p.grad, q.grad])
    note("stream after backward", torch.rand(2, device=device))


def crossing(checkpoint: Any, note: Any, device: str, *, order: str, draws: bool) -> None:
    import threading
    import time

    dropout = torch.nn.functional.dropout
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    escaped, failed, found, armed = [], {}, {}, []
    reached, go = threading.Event(), threading.Event()

    def inner(h):
        return dropout(h) if draws else h.cos()

    def middle(h, **_):
        escaped.append(h.sin())
        return checkpoint(inner, escaped[-1])

    def outer(h):
        return checkpoint(middle, dropout(h) if draws else h.exp(), preserve_rng_state=False)

    def waiting(h):
        if armed:
            reached.set()
            go.wait(10)
        return h.sin()

    def ask(name):
        try:
            (found[name],) = torch.autograd.grad(outputs[name].sum(), p, retain_graph=True)
        except Exception as error:
            failed[name] = error.with_traceback(None)
        reached.set()

    outputs = {"z": checkpoint(waiting, p * 1), "y": checkpoint(outer, p * 1), "a": escaped[0]}
    note("forward", [outputs["y"]])
    armed.append(True)
    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in ("z", *order)]
    for thread in threads:
        thread.start()
        reached.wait(10)
        time.sleep(0.05)  # now the first recomputes, and each of the others waits for its turn
    go.set()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[min(failed)]
    note("gradients 0", [found["y"] + found["a"] + found["z"]])


def forked(checkpoint: Any, note: Any, device: str, *, nested: bool) -> None:
    import os
    import signal
    import threading
    import time

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    reached, go, armed = threading.Event(), threading.Event(), []

    def inner(h):
        if armed:
            reached.set()
            go.wait(20)
        return h.cos().exp()

    def outer(h):
        return (checkpoint(inner, h.sin()) if nested else inner(h.sin())).exp()

    def there():
        y.backward(torch.ones_like(y))
        reached.set()

    y, z = checkpoint(outer, p * 1), checkpoint(torch.exp, p.sin())
    note("forward", [y, z])
    armed.append(True)
    thread = threading.Thread(target=there, daemon=True)
    thread.start()
    reached.wait(10)
    child = os.fork()
    if child == 0:
        saved = getattr(z.grad_fn, "_saved_result", None)  # this recomputes, and needs none of autograd's threads
        os._exit(0 if saved is None or saved.equal(z) else 3)
    ended = 0, 0
    for _ in range(1000):
        ended = ended if ended[0] else os.waitpid(child, os.WNOHANG)
        if not ended[0]:
            time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    go.set()
    thread.join()
    note("the forked process ended", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "not at all")
    note("gradients 0", [p.grad])
