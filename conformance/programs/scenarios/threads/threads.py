"""Programs that go forward and backward on threads of their own."""

from __future__ import annotations

from typing import Any

import torch


def two_threads(checkpoint: Any, note: Any, device: str, *, regions: int, nested: bool) -> None:
    import threading
    import time

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        time.sleep(0.01)
        return (h * p).sin()

    def outer(h):
        return checkpoint(inner, h.sin()).cos()

    held = [p * 1]
    for _ in range(regions):
        held.append(checkpoint(outer if nested else inner, held[-1]))
    note("held 0", held)
    start = threading.Barrier(2)
    failed = []

    def backward():
        start.wait(10)
        try:
            held[-1].backward(torch.ones_like(held[-1]), retain_graph=True)
        except Exception as error:
            failed.append(error.with_traceback(None))

    threads = [threading.Thread(target=backward, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        p.grad = None  # whether the other backward has ended, and gave one, depends on the threads
        raise failed[0]
    note("gradients 0", [p.grad])
    held[-1].backward(torch.ones_like(held[-1]), retain_graph=True)
    note("gradients 1", [p.grad])
    note("held 1", held)
    held.clear()
    note("empty", [])


def two_outputs(checkpoint: Any, note: Any, device: str, *, nested: bool) -> None:
    import threading
    import time

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        time.sleep(0.01)
        return h.sin(), h.exp() * p

    def outer(h):
        one, other = checkpoint(inner, h.sin())
        return one.cos(), other.tanh()

    held = [*checkpoint(outer if nested else inner, p * 1)]
    note("held 0", held)
    failed = []

    def backward(y):
        try:
            y.backward(torch.ones_like(y), retain_graph=True)
        except Exception as error:
            failed.append(error.with_traceback(None))

    threads = [threading.Thread(target=backward, args=(y,), daemon=True) for y in held]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        p.grad = None  # whether the other backward has ended, and gave one, depends on the threads
        raise failed[0]
    note("gradients 0", [p.grad])
    note("held 1", held)
    held.clear()
    note("empty", [])


def other_thread(checkpoint: Any, note: Any, device: str, *, forward: bool, backward: bool, passes: int, nested: bool) -> None:
    import threading

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def do(call, there):
        box = []

        def work():
            try:
                box.append(call())
            except Exception as error:
                box.append(error.with_traceback(None))

        if there:
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            thread.join()
        else:
            work()
        value = box.pop()
        if isinstance(value, Exception):
            raise value
        return value

    def outer(h):
        return (checkpoint(lambda x: x.sin().cos(), h.exp()) if nested else h.exp()).tanh()

    held = [do(lambda: checkpoint(outer, p), forward)]
    note("held 1", held)
    for turn in range(passes):
        do(lambda: held[0].backward(torch.ones_like(held[0]), retain_graph=True), backward)
        note(f"gradients {turn}", [p.grad])
        note(f"held {turn + 2}", held)
    held.clear()
    note("empty", [])


def meanwhile(checkpoint: Any, note: Any, device: str, *, waits: str, nested: bool) -> None:
    import threading

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    reached, gone = threading.Event(), threading.Event()
    failed = []

    def pause():
        if threading.current_thread() is thread and not reached.is_set():
            reached.set()
            gone.wait(10)

    def inner(h):
        return h.cos() * h

    def earlier(h):
        h = h.sin()
        pause()
        return checkpoint(inner, h) if nested else inner(h)

    def later(h):
        h = h * p
        pause()
        return h.exp()

    def forward():
        held.append(checkpoint(later, p * 2))

    def backward():
        held[0].backward(torch.ones_like(held[0]))

    def there():
        try:
            forward() if waits == "forward" else backward()
        except Exception as error:
            failed.append(error.with_traceback(None))
        reached.set()

    thread = threading.Thread(target=there, daemon=True)
    held = [checkpoint(earlier, p)]
    thread.start()
    reached.wait(10)
    try:
        backward() if waits == "forward" else forward()
    finally:
        gone.set()
        thread.join()
    if failed:
        raise failed[0]
    note("gradients 0", [p.grad])
    note("forward", held)
    held[1].backward(torch.ones_like(held[1]))
    note("gradients 1", [p.grad])
    held.clear()
    note("empty", [])


def under_way(checkpoint: Any, note: Any, device: str, *, nested: bool) -> None:
    import threading

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    made, failed = [], []

    def backward():
        try:
            made[0].backward(torch.ones_like(made[0]), retain_graph=True)
        except Exception as error:
            failed.append(error.with_traceback(None))

    def f(h):
        h = checkpoint(torch.sin, h) if nested else h.sin()
        made.append(h)
        if len(made) == 1:
            thread = threading.Thread(target=backward, daemon=True)
            thread.start()
            thread.join()
        return h.exp() * p

    held = [checkpoint(f, p)]
    if failed:
        raise failed[0]
    note("gradients 0", [p.grad])
    note("forward", held)
    held[0].backward(torch.ones_like(held[0]))
    note("gradients 1", [p.grad])
    held.clear()
    made.clear()
    note("empty", [])


def apart(checkpoint: Any, note: Any, device: str, *, where: str, nested: bool) -> None:
    import concurrent.futures
    import contextlib
    import threading

    leaves = [torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2)]
    note("leaves", leaves)
    meeting, now = threading.Barrier(2), []

    def inner(h):
        if where in now:
            with contextlib.suppress(threading.BrokenBarrierError):
                meeting.wait(5)
        return h.sin()

    def outer(h):
        return (checkpoint(inner, h.exp()) if nested else inner(h.exp())).cos()

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for _ in range(4):  # a lock that is held for a while is not always met
            now[:] = ["forward"]
            made = list(pool.map(lambda leaf: checkpoint(outer, leaf), leaves))
            now[:] = ["backward"]
            list(pool.map(lambda y: y.backward(torch.ones_like(y)), made))
    note("waited in vain", meeting.broken)
    note("gradients 0", [leaf.grad for leaf in leaves])


def after_a_failure(checkpoint: Any, note: Any, device: str, *, where: str, nested: bool) -> None:
    import contextlib
    import threading
    import time

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    armed, failed = [], []

    def f(h):
        h = h.sin() * p
        h = checkpoint(torch.exp, h) if nested else h.exp()
        if armed:
            raise armed.pop()
        return h.cos()

    held = [checkpoint(f, p)]
    armed.append(ValueError("program"))
    with contextlib.suppress(ValueError):
        checkpoint(f, p) if where == "forward" else held[0].backward(torch.ones_like(held[0]), retain_graph=True)
    armed.clear()  # plain runs nothing again
    p.grad = None

    def there():
        try:
            held[0].backward(torch.ones_like(held[0]), retain_graph=True)
        except Exception as error:
            failed.append(error.with_traceback(None))

    thread = threading.Thread(target=there, daemon=True)
    thread.start()
    for _ in range(300):  # awake, as nobody has to wait for a thread that sleeps
        if thread.is_alive():
            time.sleep(0.01)
    if failed:
        raise failed[0]
    note("waits in vain", thread.is_alive())
    note("gradients 0", [p.grad])
