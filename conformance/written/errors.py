"""Programs that go wrong, or look as if they might."""

from __future__ import annotations

from typing import Any

import torch


def differing(checkpoint: Any, note: Any, device: str, *, change: str, before: int, nested: bool) -> None:
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
        return h if changed == "fewer" else h.exp()
    def outer(h):
        return (checkpoint(inner, h.tanh()) if nested else inner(h)) + 1
    y = checkpoint(outer, p * 1)
    note("forward", y)
    recomputing.append(True)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


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


def refused(checkpoint: Any, note: Any, device: str, *, wrong: Any) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    ran = []
    def f(h):
        ran.append(True)
        return h.sin()
    try:
        checkpoint(f, p, **wrong) if isinstance(wrong, dict) else checkpoint(wrong, p)
        note("refused", False)
    except (TypeError, ValueError):
        note("refused", True)
    note("the function ran", len(ran))
    y = checkpoint(f, checkpoint(f, p * 1))
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def swallowed(checkpoint: Any, note: Any, device: str, *, before: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def fails(h):
        for _ in range(before):
            h = h.sin()
        raise ValueError("program")
    y = checkpoint(lambda h: h.exp().cos(), p * 1)
    try:
        checkpoint(fails, p * 1)
        note("a value came back", True)
    except (ValueError, RuntimeError):
        note("a value came back", False)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


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
    from contextlib import ExitStack, contextmanager
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    level = []
    class Manager:
        def __enter__(self):
            level.append(form)
        def __exit__(self, *_):
            level.pop()
    @contextmanager
    def safe():
        level.append(form)
        try:
            yield
        finally:
            level.pop()
    @contextmanager
    def unsafe():
        level.append(form)
        yield
        level.pop()
    def inner(h):
        with ExitStack() as stack:
            stack.enter_context({"class": Manager, "generator": safe, "without finally": unsafe}[form]())
            return h.exp().sin()
    def outer(h):
        return checkpoint(inner, h.cos()) * 2 if nested else inner(h)
    y = checkpoint(outer, p * 1)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("levels not left", len(level))


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
    try:
        y.backward(torch.ones_like(y))
    except RuntimeError:
        pass
    note("right or none", [leaf.grad is None or torch.allclose(leaf.grad, one) for leaf, one in zip((p, x), expected)])


def unsaved(checkpoint: Any, note: Any, device: str, *, form: str, changed: str, parameters: bool, nested: bool) -> None:
    p, q = (torch.nn.Parameter(torch.randn(2, 2, device=device)) for _ in range(2))
    note("leaves", (p, q))
    def f(h, other=None):
        other = {"list": lambda: other[1], "dict": lambda: other["deep"][0]}.get(form, lambda: other)()
        return (h + other).sin().exp()
    def outer(h, other):
        return checkpoint(f, h, [None, other]) if form == "list" else checkpoint(f, h, {"deep": (other,)}) if form == "dict" else \
            checkpoint(f, h, other=other) if form == "keyword" else checkpoint(f, h, other)
    a, b = (p, q) if parameters else (p * 1, q * 1)
    y = checkpoint(outer, a, b) if nested else outer(a, b)
    note("forward", y)
    with torch.no_grad():
        {"first": a, "second": b}[changed].mul_(2)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, q.grad])


def stale(checkpoint: Any, note: Any, device: str, *, request: str, depth: int, changed: str) -> None:
    x, p, q = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(3))
    note("leaves", (x, p, q))
    def region(level):
        def f(h):
            if level:
                return checkpoint(region(level - 1), h + 1).sin()
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
        note("grad", torch.autograd.grad(y.sum(), {"p": p, "q": q}[request]))


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
