"""Programs about what is kept, for how long, and what an error leaves behind."""

from __future__ import annotations

from typing import Any

import torch


def again(checkpoint: Any, note: Any, device: str, *, regions: int, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        return (h * p).sin()

    def outer(h):
        return checkpoint(inner, h.cos()).sin()

    y = p.sin()
    for _ in range(regions):
        y = checkpoint(outer if nested else inner, y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    try:
        y.backward(torch.ones_like(y))
        note("again", "a value")
    except Exception as error:
        note("again", f"{type(error).__name__}: {error}")
    note("gradients 1", [p.grad])


def chain(checkpoint: Any, note: Any, device: str, *, length: int, passes: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        for index in range(length):
            h = h.sin()
            if h.requires_grad:
                h.register_hook(lambda grad, index=index: note(f"due {index}"))
        return h

    y = checkpoint(f, p)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])


def deep_graphs(checkpoint: Any, note: Any, device: str, *, regions: int, length: int) -> None:
    import threading

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        for _ in range(length):
            h = h.sin()
        return h

    def step():
        y = p
        for _ in range(regions):
            y = checkpoint(f, y)
        y.sum().backward()

    before = threading.stack_size(2**19)
    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    threading.stack_size(before)
    note("gradients 0", [p.grad])


def contained(checkpoint: Any, note: Any, device: str, *, kind: str, passes: int) -> None:
    from collections import deque

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    h = p.cos()
    box = {"list": [h], "tuple": (h,), "dict": {"deep": [h]}, "deque": deque([h])}[kind]

    def f(box):
        h = box["deep"][0] if kind == "dict" else box[0]
        return (h.sin() * h).exp()

    y = checkpoint(f, box)
    del h, box
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])
    del y
    note("empty")


def branches(checkpoint: Any, note: Any, device: str, *, length: int, passes: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    q = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p, q))

    def f(a, b):
        for _ in range(length):
            a, b = a.sin(), b.cos()
        return a * b

    y = checkpoint(f, p, q)
    note("held", [y])
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True, inputs=[q])
        note(f"gradients {turn}", [p.grad, q.grad])
        note(f"held {turn}", [y])


def tail(checkpoint: Any, note: Any, device: str, *, saving: int, after: int, levels: int, passes: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    ran = []

    def f(h, level):
        for _ in range(saving):
            h = h.sin()
        if level > 1:
            h = checkpoint(lambda x: f(x, level - 1), h)
        for _ in range(after):
            h = h + 1
        ran.append(level)
        return h

    y = checkpoint(lambda x: f(x, levels), p)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])
    note("ran to the end", len(ran))


def read(checkpoint: Any, note: Any, device: str, *, length: int, times: int, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        for _ in range(length):
            h = h.tanh()
        return h

    def outer(h):
        return checkpoint(inner, h.sin()).exp() if nested else inner(h)

    y = checkpoint(outer, p)
    note("forward", y)
    for _ in range(times):
        node = y.grad_fn
        while node is not None:
            getattr(node, "_saved_result", None)
            node = node.next_functions[0][0] if node.next_functions else None
    y.backward(torch.ones_like(y), retain_graph=True)
    note("gradients 0", [p.grad])
    del y, node
    note("empty", [])


def steps(checkpoint: Any, note: Any, device: str, *, retained: bool, regions: int, fails: bool) -> None:
    import contextlib

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    armed = []

    def f(h):
        h = (h * p).sin()
        if armed:
            raise ValueError("program")
        return h.cos()

    def forward():
        y = p * 1
        for _ in range(regions):
            y = checkpoint(f, y)
        return y

    y = forward()
    for _ in range(12):
        if not retained:
            y = forward()
        if fails:
            armed.append(True)
            with contextlib.suppress(ValueError):
                y.backward(torch.ones_like(y), retain_graph=True)
            armed.clear()
            p.grad = None
        y.backward(torch.ones_like(y), retain_graph=retained)
        note("gradients", [p.grad])
        p.grad = None
        note("gradients before the next step", [p.grad])
        note("step")


def callables(checkpoint: Any, note: Any, device: str, *, kind: str, passes: int) -> None:
    import functools

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    class Block(torch.nn.Module):
        def forward(self, h):
            return (h * self.scale).sin().cos()

    def forward():
        block = Block()
        block.scale = torch.full((2, 2), 2.0, device=device)
        if kind == "module":
            return checkpoint(block, p)
        if kind == "method":
            return checkpoint(block.forward, p)
        if kind == "partial":
            return checkpoint(functools.partial(Block.forward, block), p)
        return checkpoint(lambda h: block(h), p)

    y = forward()
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
    del y
    note("empty", [])


def hooked(checkpoint: Any, note: Any, device: str, *, where: str, passes: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def double(grad):
        return grad * 2

    def f(h):
        h = h.sin()
        if where != "outside" and h.requires_grad:
            h.register_hook(double)
        return h.cos()

    y = checkpoint(f, p)
    if where != "inside":
        y.register_hook(double)
        y.grad_fn.register_hook(lambda *grads: None)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
    del y
    note("empty", [])


def changed_input(checkpoint: Any, note: Any, device: str, *, ends: str, wrapped: bool) -> None:
    import contextlib

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h):
        h.tanh_()  # saves its result, so an input that comes back is in a graph that holds the region
        if ends == "raises":
            raise ValueError("after the change")
        return h if ends == "returned" else h.sin().cos()

    held = [p * 1]
    with contextlib.suppress(RuntimeError, ValueError):
        held.append(checkpoint(lambda h: checkpoint(f, h.sin()), held[0]) if wrapped else checkpoint(f, held[0]))
    held.clear()
    note("empty", [])
    y = checkpoint(lambda h: h.sin().cos(), p)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def after_an_error(
    checkpoint: Any, note: Any, device: str, *, error: str, where: str, nested: bool, noise: bool, autocast: bool
) -> None:
    kind = torch.device(device).type
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    raised = {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[error]
    armed = []
    packed = []

    def inner(h):
        h = (h @ h).sin()
        if noise:
            h = h * torch.rand_like(h)
        if armed:
            note("raised", error)
            raise armed.pop()
        return h.cos()

    def outer(h):
        return checkpoint(inner, h.cos()).tanh()

    def forward():
        with torch.autocast(kind, torch.bfloat16, autocast, cache_enabled=False):
            return checkpoint(outer if nested else inner, p)

    y = forward()
    if noise:
        note("stream before", torch.rand(2, device=device))  # else a replay ends where the stream is
    calls = {
        "forward": forward,
        "backward": lambda: y.backward(torch.ones_like(y), retain_graph=True),
        "reading": lambda: [getattr(y.grad_fn, name) for name in dir(y.grad_fn) if name.startswith("_saved")],
    }
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        armed.append(raised("program"))
        try:
            calls[where]()
        except raised as came:
            note("came", type(came).__name__)
        armed.clear()
        packed.clear()
        p.sin()
    note("packed by the hooks around", len(packed))
    note("modes", [torch.is_grad_enabled(), torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)])
    note("cache", torch.is_autocast_cache_enabled())
    if noise:
        note("stream", torch.rand(2, device=device))
    p.grad = None
    for graph in (y, forward()):
        graph.backward(torch.ones_like(graph))
    note("gradients 0", [p.grad])
