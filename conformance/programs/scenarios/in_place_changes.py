"""Programs that change tensors in place at the wrong time."""

from __future__ import annotations

from typing import Any

import torch


def stepped(checkpoint: Any, note: Any, device: str, *, change: str, layer: int, regions: int) -> None:
    layers = [torch.nn.Linear(2, 2).to(device) for _ in range(3)]
    parameters = [q for one in layers for q in one.parameters()]
    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x, *parameters))

    def model(h):
        for one in layers:
            h = one(h).tanh()
        return h

    y = x
    for _ in range(regions):
        y = checkpoint(model, y)
    note("forward", y)
    weight = layers[layer].weight
    if change in ("SGD", "Adam"):
        weight.grad = torch.ones_like(weight)
        getattr(torch.optim, change)([weight], lr=0.1).step()
        weight.grad = None
    elif change == "load_state_dict":
        layers[layer].load_state_dict({key: value * 2 for key, value in layers[layer].state_dict().items()})
    else:
        with torch.no_grad():
            weight.copy_(weight * 0.5)
    y.backward(torch.ones_like(y))
    note("gradients 0", [leaf.grad for leaf in (x, *parameters)])


def hooked(checkpoint: Any, note: Any, device: str, *, hooks: str, changed: str, form: str) -> None:
    from contextlib import suppress

    graph = torch.autograd.graph
    p, x = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(2))
    note("leaves", (p, x))

    def f(h):
        h = h[0] if isinstance(h, list) else h
        return (h * p).exp()

    expected = torch.autograd.grad(f(x * 1).sum(), (p, x))
    a = x * 1
    with graph.save_on_cpu() if hooks == "save_on_cpu" else graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        y = checkpoint(f, [a] if form == "list" else a)
    note("forward", y)
    with torch.no_grad():
        {"argument": a, "parameter": p, "output": y}[changed].mul_(2)
    with suppress(RuntimeError):
        y.backward(torch.ones_like(y))
    pairs = zip((p, x), expected, strict=True)
    note("right or none", [leaf.grad is None or torch.equal(leaf.grad, one) for leaf, one in pairs])


def unsaved(
    checkpoint: Any, note: Any, device: str, *, form: str, changed: str, after: int, parameters: bool, nested: bool
) -> None:
    class Kind(torch.Tensor):
        pass

    p, q = (torch.nn.Parameter(torch.randn(2, 2, device=device)) for _ in range(2))
    note("leaves", (p, q))

    def f(h, other=None):
        other = {"list": lambda: other[1], "dict": lambda: other["deep"][0]}.get(form, lambda: other)()
        other = other.as_subclass(torch.Tensor) if form == "subclass" else other
        return (h + other).sin().exp()

    def outer(h, other):
        if form == "list":
            return checkpoint(f, h, [None, other])
        if form == "dict":
            return checkpoint(f, h, {"deep": (other,)})
        return checkpoint(f, h, other=other) if form == "keyword" else checkpoint(f, h, other)

    a, b = (p, q) if parameters else (p * 1, q * 1)
    b = b.as_subclass(Kind) if form == "subclass" else b
    y = checkpoint(outer, a, b) if nested else outer(a, b)
    note("forward", y)
    for number in range(after):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {number}", [p.grad, q.grad])
    with torch.no_grad():
        {"first": a, "second": b}[changed].mul_(2)
    y.backward(torch.ones_like(y))
    note(f"gradients {after}", [p.grad, q.grad])


def stale(checkpoint: Any, note: Any, device: str, *, request: str, depth: int, changed: str) -> None:
    x, p, q = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(3))
    note("leaves", (x, p, q))

    def region(level):
        def f(h):
            if level:
                return checkpoint(region(level - 1), h).sin()
            return (h * p).sin()

        return f

    def outer(h):
        return region(depth)(h) * q

    y = checkpoint(outer, x * 1)
    note("forward", y)
    with torch.no_grad():
        {"p": p, "q": q}[changed].mul_(2)
    if request == "backward":
        y.backward(torch.ones_like(y))
        note("gradients 0", [x.grad, p.grad, q.grad])
    else:
        note("grad", torch.autograd.grad(y, {"p": p, "q": q}[request], torch.ones_like(y)))


def stepped_meanwhile(checkpoint: Any, note: Any, device: str, *, depth: int, shared: bool) -> None:
    x, p, q = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(3))
    note("leaves", (x, p, q))

    def step(grad):
        with torch.no_grad():
            (q if shared else p).sub_(grad, alpha=0.1)

    def region(level):
        def f(h):
            h = checkpoint(region(level - 1), h + 1).sin() if level else h * p
            return (h * q if shared else h).sin()

        return f

    y = checkpoint(region(depth), x * 1) * q
    q.register_hook(step)
    note("forward", y)
    for number in range(2):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {number}", [x.grad, p.grad, q.grad])


def output(checkpoint: Any, note: Any, device: str, *, last: str, before: int, tries: int, nested: bool) -> None:
    from contextlib import suppress

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        return getattr(h.sin(), last)()

    y = checkpoint(lambda h: checkpoint(f, h.cos()), p * 1) if nested else checkpoint(f, p * 1)
    note("forward", y)
    for turn in range(before):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
    with torch.no_grad():
        y.mul_(2)
    for _ in range(tries - 1):
        with suppress(RuntimeError):
            y.backward(torch.ones_like(y), retain_graph=True)
    y.backward(torch.ones_like(y))
    note("gradients", [p.grad])


def argument(checkpoint: Any, note: Any, device: str, *, saved: bool, constant: bool, nested: bool) -> None:
    p, q = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, q))

    def f(h, other):
        k = other.sin() if saved else other + 1
        other.mul_(2)
        return k * h * other

    def outer(h, other):
        return checkpoint(f, h.tanh(), other).cos() if nested else f(h, other)

    y = checkpoint(outer, p * 1, q.detach() * 1 if constant else q * 1)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, q.grad])


def copied(checkpoint, note, device, *, changes, kept, nested, around):
    graph = torch.autograd.graph
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def inner(h):
        return (h * p).add_(1).sin()
    def outer(h):
        return (checkpoint(inner, h + 1) if nested else inner(h)).cos()
    with graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        h = p + 1
        for _ in range(changes):
            h.add_(1)
        y = checkpoint(outer, h)
        y = checkpoint(outer, y) if around else y
    if not kept:
        del h
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
