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
