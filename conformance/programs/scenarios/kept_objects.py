"""Programs about what an implementation may keep besides the tensors that it is passed."""

from __future__ import annotations

from typing import Any

import torch


def attributed(checkpoint: Any, note: Any, device: str, *, special: bool, passes: int, nested: bool) -> None:
    class Kind(torch.Tensor):
        pass

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        scale = getattr(h, "scale", 1.0)
        return ((h.as_subclass(torch.Tensor) if special else h) * scale).sin()

    def outer(h):
        h = h.sin()
        scale = h.detach().cos()
        h = h.as_subclass(Kind) if special else h
        h.scale = scale
        return (checkpoint(inner, h) if nested else inner(h)).tanh()

    y = checkpoint(outer, p)
    note("held", [y])
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
        note(f"held {turn}", [y])
    del y
    note("empty", [])


def objects(checkpoint: Any, note: Any, device: str, *, where: str, passes: int, nested: bool) -> None:
    import weakref

    class Setting:
        power = 3

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    checkpoint(lambda h: h.sin(), p).sum().backward()  # the first call of all may import, and keep who called
    p.grad = None

    def inner(h, setting):
        return h.sin() ** (setting[0] if where == "list" else setting).power

    def forward():
        setting = Setting()
        passed = [setting] if where == "list" else setting

        def outer(h, given=passed):
            return (checkpoint(inner, h.exp(), given) if nested else inner(h.exp(), given)).cos()

        return checkpoint(outer, p) if where == "function" else checkpoint(outer, p, passed), weakref.ref(setting)

    y, there = forward()
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
    del y
    note("gone", there() is None)


def read_again(checkpoint, note, device, *, saved, times, before, after, passes, nested):
    class Reads(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            ctx.save_for_backward(*tensors, None)
            return sum(tensors)

        @staticmethod
        def backward(ctx, grad):
            for _ in range(times):
                *tensors, _ = ctx.saved_tensors
            return tuple(grad * tensor.cos() for tensor in tensors)

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def sines(h, label, count):
        for index in range(count):
            h = h.sin()
            if h.requires_grad:
                h.register_hook(lambda grad, index=index: note(f"due {label} {index}"))
        return h

    def inner(h):
        h = Reads.apply(*((number + 1) * h for number in range(saved)))
        return sines(h, "after", after)

    def outer(h):
        h = sines(h, "before", before)
        return checkpoint(inner, h) if nested else inner(h)

    y = checkpoint(outer, p)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])


def filled(checkpoint: Any, note: Any, device: str, *, kind: str, when: str, steps: int, others: int) -> None:
    from dataclasses import dataclass

    @dataclass
    class Box:
        scale: float

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    p.sin()

    def put(box, value):
        if kind == "list":
            box.append(value)
        elif kind == "dict":
            box["value"] = value
        else:
            box.value = value

    def f(h, box):
        h = h.sin()
        if when == "inside":
            put(box, h)
        return h.exp()

    beside = [checkpoint(f, p, [2.0]) for _ in range(others)]
    for step in range(steps):
        box = {"list": [2.0], "dict": {"scale": 2.0}, "dataclass": Box(2.0)}[kind]
        y = checkpoint(f, p, box)
        if when == "afterwards":
            put(box, y)
        note(f"held {step}", [y, *beside])
        del y, box
        note(f"step {step}", beside)


def emptied_at_each_level(checkpoint: Any, note: Any, device: str, *, kind: str, layers: int, reads: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def put(box, value):
        if kind == "list":
            box.append(value)
        else:
            box[0] = value

    def layer(h, index):
        h = h.sin()
        if h.requires_grad:
            h.register_hook(lambda grad: note(f"due {index}"))
        return h

    def read(box, index):
        return layer(box[0], index)

    def halves(first, count):
        def f(box):
            if count > 1:
                put(box, checkpoint(halves(first, count // 2), box))
                put(box, checkpoint(halves(first + count // 2, count - count // 2), box))
            elif reads:
                h = checkpoint(read, box, first)
                box.pop(0)
                put(box, h)
                del h
            else:
                put(box, layer(box.pop(0), first))
            return box.pop(0)

        return f

    box = [p] if kind == "list" else {0: p}
    y = halves(0, layers)(box)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def left_by_a_stop(checkpoint: Any, note: Any, device: str, *, kind: str, levels: int, passes: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def put(box, value):
        if kind == "list":
            box.append(value)
        else:
            box[0] = value

    def layer(h, index):
        h = h.sin()
        if h.requires_grad:
            h.register_hook(lambda grad: note(f"due {index}"))
        return h

    def inner(box, index, level):
        if level == 1:
            return layer(box.pop(0), index)
        put(box, checkpoint(inner, box, index, level - 1))
        return box.pop(0)

    def outer(box):
        for index in range(2):
            put(box, checkpoint(inner, box, index, levels))
        return box.pop(0)

    box = [p] if kind == "list" else {0: p}
    put(box, checkpoint(outer, box))
    y = checkpoint(inner, box, 2, levels)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])


def known_by_identity(checkpoint: Any, note: Any, device: str, *, attribute: bool, result: bool, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    table = p.detach().exp() if result else torch.randn(2, 2, device=device)
    if attribute:
        table.kind = "positions"
    scales = {id(table): 3.0}

    def inner(w, h):
        return (h * w * scales.get(id(w), 1.0)).cos()

    def outer(h):
        return (checkpoint(inner, table, h.exp()) if nested else inner(table, h.exp())).sin() * h

    y = checkpoint(outer, p) if nested else checkpoint(inner, table, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
