"""Programs in which modes that all threads share are set: by another thread, or by the function of a region."""

from __future__ import annotations

from typing import Any

import torch


def set_meanwhile(checkpoint: Any, note: Any, device: str, *, mode: str, forward: int, backward: int, nested: bool) -> None:
    import threading

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    reached, go, armed, failed = threading.Event(), threading.Event(), [], []

    def switch(to):
        if mode == "default dtype":
            torch.set_default_dtype((torch.float32, torch.bfloat16, torch.float64)[to])
        else:
            torch.use_deterministic_algorithms(to > 0, warn_only=to == 2)

    def modes():
        flags = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.zeros(1).dtype, flags

    def inner(h):
        h = h.sin()
        if armed:
            reached.set()
            go.wait(10)
        return h.exp()

    def outer(h):
        return (checkpoint(inner, h.cos()) if nested else inner(h.cos())).tanh()

    def there():
        try:
            y.backward(torch.ones_like(y))
        except Exception as error:
            failed.append(error.with_traceback(None))
        reached.set()

    try:
        switch(forward)
        y = checkpoint(outer, p * 1)
        note("forward", y)
        switch(backward)
        armed.append(True)
        thread = threading.Thread(target=there, daemon=True)
        thread.start()
        reached.wait(10)
        note("modes while another thread recomputes", modes() if forward == backward else None)
        switch(2)
        go.set()
        thread.join()
        note("modes afterwards", modes())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    if failed:
        raise failed[0]
    note("gradients 0", [p.grad])


def set_inside(checkpoint: Any, note: Any, device: str, *, mode: str, then: str, backward: int, nested: bool) -> None:
    from contextlib import suppress

    calls = []
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def switch(to):
        if mode == "default dtype":
            torch.set_default_dtype((torch.float32, torch.bfloat16, torch.float64)[to])
        else:
            torch.use_deterministic_algorithms(to > 0, warn_only=to == 2)

    def modes():
        flags = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        return torch.get_default_dtype(), flags

    def inner(h):
        switch(2)
        h = (h * torch.full((2, 2), 0.1, device=device).to(h.dtype)).sin()
        calls.append("inner")
        if then == "fails when it runs again" and len(calls) > 1:
            raise ValueError("program")
        if then != "leaves it":
            switch(0)
        return h + 1

    def outer(h):
        return checkpoint(inner, h.cos()) if nested else inner(h.cos())

    try:
        y = checkpoint(outer, p * 1)
        note("forward", y)
        note("modes after forward", modes())
        switch(backward)
        with suppress(ValueError):
            y.backward(torch.ones_like(y))
        note("modes after backward", modes())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    note("gradients 0", [p.grad])
