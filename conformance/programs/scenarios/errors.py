"""Programs that go wrong, or look as if they might."""

from __future__ import annotations

from typing import Any

import torch


def differing(checkpoint: Any, note: Any, device: str, *, change: str, before: int, tries: int, nested: bool) -> None:
    from contextlib import suppress

    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    recomputing = []

    def inner(h):
        changed = change if recomputing else ""
        for _ in range(before):
            h = h.sin() + 1
        if changed == "more":
            h = h.tanh()
        k, h = h, h.cos()
        if changed == "corrupts":
            with torch.no_grad():
                k.mul_(2)
        c = torch.full((1, 1) if changed == "shape" else (2, 2), 3.0 if changed else 1.0, device=device, dtype=h.dtype)
        h = h * (c.float() if changed == "dtype" else c)
        if changed == "device":
            h = h.to("meta")
        if changed == "fewer":
            return h
        return h.exp().sin() if changed == "more at the end" else h.exp()

    def outer(h):
        return checkpoint(inner, h.tanh()) + 1 if nested else inner(h)

    y = checkpoint(outer, p * 1)
    note("forward", y)
    recomputing.append(True)
    for _ in range(tries - 1):
        with suppress(RuntimeError):
            y.backward(torch.ones_like(y), retain_graph=True)
        p.grad = None
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def listed(checkpoint: Any, note: Any, device: str, *, before: int, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    runs = []

    def inner(h):
        runs.append(True)
        for _ in range(before):
            h = h.sin() + 1
        h = h.cos()
        return h.tanh() if len(runs) == 1 else h[:1].sigmoid()

    y = checkpoint(lambda h: checkpoint(inner, h * 2) if nested else inner(h), p * 1)
    note("forward", y)
    try:
        y.backward(torch.ones_like(y))
        listed = len(runs) == 1  # what is not recomputed has nothing to list
    except RuntimeError as error:
        listed = [name for name in ("aten.cos", "aten.tanh", "aten.sigmoid") if name not in str(error)] == []
    note("both runs are listed", listed)


def listed_alone(checkpoint: Any, note: Any, device: str, *, before: int, nested: bool) -> None:
    import re

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    runs, called = [], {"mul", "sin", "cos", "tanh", "sigmoid", "slice"}

    def inner(h):
        runs.append(True)
        for _ in range(before):
            h = h.sin()
        h = h.cos()
        return h.tanh() if len(runs) == 1 else h[:1].sigmoid()

    y = checkpoint(lambda h: checkpoint(inner, h * 2) if nested else inner(h), p * 1)
    note("forward", y)
    listed = set()
    try:
        y.backward(torch.ones_like(y))
    except RuntimeError as error:
        listed = {*re.findall(r"aten\.(\w+)", str(error))}
    note("listed and not called", sorted(listed - called))


def tolerable(checkpoint: Any, note: Any, device: str, *, change: str, factor: float) -> None:
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    recomputing = []

    def f(h):
        c = torch.full((2, 2), factor, device=device, dtype=h.dtype)
        if recomputing:
            c = c.float() if change == "dtype" else c[:1] if change == "shape" else c[:1].float()
        return h.sin() * c

    y = checkpoint(f, p * 1)
    note("forward", y)
    recomputing.append(True)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def refused(checkpoint: Any, note: Any, device: str, *, wrong: Any, names: Any) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    ran = []

    def f(h):
        ran.append(True)
        return h.sin()

    try:
        checkpoint(f, p, **wrong) if isinstance(wrong, dict) else checkpoint(wrong, p)
        note("refused", False)
    except (TypeError, ValueError) as error:
        note("refused", True)
        note("names what is wrong", any(name in str(error) for name in names))
    note("the function ran", len(ran))
    y = checkpoint(f, checkpoint(f, p * 1))
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def refused_flag(checkpoint: Any, note: Any, device: str, *, value: Any) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    ran = []

    def f(h):
        ran.append(True)
        return h.sin()

    try:
        checkpoint(f, p, preserve_rng_state=value)
        note("refused", False)
    except (TypeError, ValueError) as error:
        note("refused", True)
        note("names what is wrong", "preserve_rng_state" in str(error))
    note("the function ran", len(ran))
    y = checkpoint(f, checkpoint(f, p * 1))
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def refused_contexts(checkpoint: Any, note: Any, device: str, *, returned: str) -> None:
    from contextlib import nullcontext

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    ran = []

    def f(h):
        ran.append(True)
        return h.sin()

    contexts = {
        "none": None,
        "one": nullcontext(),
        "three": (nullcontext(), nullcontext(), nullcontext()),
        "other": (nullcontext(), 3),
    }[returned]
    try:
        checkpoint(f, p, context_fn=lambda: contexts)
        note("refused", False)
    except (TypeError, ValueError) as error:
        note("refused", True)
        note("names what is wrong", "context_fn" in str(error))
    note("the function ran", len(ran))
    y = checkpoint(f, checkpoint(f, p * 1))
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def swallowed(checkpoint: Any, note: Any, device: str, *, before: int, grad: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def fails(h):
        for _ in range(before):
            h = h.sin()
        raise ValueError("program")

    y = checkpoint(lambda h: h.exp().cos(), p * 1)
    try:
        with torch.set_grad_enabled(grad):
            checkpoint(fails, p * 1)
        note("a value came back", True)
    except (ValueError, RuntimeError):
        note("a value came back", False)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def entered(checkpoint: Any, note: Any, device: str, *, grad: bool, after: int) -> None:
    log = []

    class Watched:
        def __init__(self, name):
            self.name = name

        def __enter__(self):
            log.append(f"enter {self.name}")

        def __exit__(self, kind, *_):
            log.append(f"leave {self.name}" if kind is None else f"leave {self.name} by {kind.__name__}")

    p = torch.randn(2, 2, device=device, requires_grad=True)

    def f(h):
        log.append("run")
        h = h.sin()
        for _ in range(after):
            h = h.exp()
        return h

    with torch.set_grad_enabled(grad):
        y = checkpoint(f, p, context_fn=lambda: (Watched("forward"), Watched("recomputation")))
    if grad:
        y.backward(torch.ones_like(y))
    runs = ["forward", "recomputation"][: 1 + grad]
    note("expected order", [step for run in runs for step in (f"enter {run}", "run", f"leave {run}")])
    note("seen order", log)


def catching(checkpoint: Any, note: Any, device: str, *, catches: str, form: str, nested: bool) -> None:
    from contextlib import suppress

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    kind = {"Exception": Exception, "RuntimeError": RuntimeError, "BaseException": BaseException}[catches]
    fallbacks = []

    def inner(h):
        h = h.exp()
        if form == "fallback":
            try:
                return h.sin()
            except kind:
                fallbacks.append(form)
                return h.tanh() * 5
        if form == "retry":
            for scale in (1.0, 0.5):
                try:
                    return (h * scale).sin()
                except kind:
                    fallbacks.append(form)
        out = None
        with suppress(kind):
            out = h.sin()
        if out is None:
            fallbacks.append(form)
            out = h.tanh() * 5
        return out

    def outer(h):
        return checkpoint(inner, h.cos()) * 2 if nested else inner(h)

    y = checkpoint(outer, p * 1)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("fallbacks", len(fallbacks) if catches != "BaseException" else 0)


def managed(checkpoint: Any, note: Any, device: str, *, form: str, nested: bool) -> None:
    import contextlib

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    level = []

    class Manager:
        def __enter__(self):
            level.append(form)

        def __exit__(self, *_):
            level.pop()

    @contextlib.contextmanager
    def safe():
        level.append(form)
        try:
            yield
        finally:
            level.pop()

    @contextlib.contextmanager
    def computing():
        level.append(form)
        try:
            yield
        finally:
            p.sin()
            level.pop()

    @contextlib.contextmanager
    def unsafe():
        level.append(form)
        yield
        level.pop()

    def inner(h):
        with (
            Manager() if form == "class"
            else safe() if form == "generator"
            else computing() if form == "computing"
            else unsafe()
        ):
            return h.exp().sin()

    def outer(h):
        return checkpoint(inner, h.cos()) * 2 if nested else inner(h)

    y = checkpoint(outer, p * 1)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("levels not left", len(level))


def scripted_inside(checkpoint: Any, note: Any, device: str, *, how: str, computed: bool, steps: int, nested: bool) -> None:
    p, q = (torch.randn(3, 3, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))

    def f(a):
        if how == "trace":
            return torch.jit.trace(lambda a, b: a.sin() * b.exp(), (a, q), check_trace=False)(a, q)
        return torch.jit.CompilationUnit("def f(a, b):\n    return a.sin() * b.exp()\n").f(a, q)

    def outer(h):
        return (checkpoint(f, h * 1.5) if nested else f(h * 1.5 if computed else h)).cos()

    for step in range(steps):
        p.grad = q.grad = None
        y = checkpoint(outer, p)
        note(f"forward {step}" if step else "forward", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, q.grad])


def scripted(checkpoint: Any, note: Any, device: str, *, how: str, alike: bool, before: int, steps: int, nested: bool) -> None:
    p, q = (torch.randn(3, 3, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))
    text = f"def f(a, b):\n    return {'a.sin() * b.exp()' if alike else '(a * b).sin().exp() * torch.tanh(a)'}\n"
    if how == "trace":
        f = torch.jit.trace(
            lambda a, b: a.sin() * b.exp() if alike else (a * b).sin().exp() * torch.tanh(a), (p * 1, q), check_trace=False
        )
    else:
        f = torch.jit.CompilationUnit(text).f

    def outer(h):
        return (checkpoint(f, h * 1.5, q) if nested else f(h * 1.5, q)).cos()

    for _ in range(before):
        f(p * 1.5, q).sum().backward()
    for step in range(steps):
        p.grad = q.grad = None
        y = checkpoint(outer, p)
        note(f"forward {step}" if step else "forward", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, q.grad])
