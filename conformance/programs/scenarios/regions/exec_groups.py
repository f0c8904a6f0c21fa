"""Programs that split a backward into several calls, which a GraphExecGroup announces."""

from __future__ import annotations

from typing import Any

import torch


def split(checkpoint: Any, note: Any, device: str, *, parts: int, apart: bool, before: bool, nested: bool) -> None:
    from torch.utils.checkpoint import GraphExecGroup

    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x,))

    def inner(h):
        return h.sin() if parts == 1 else tuple((h * number).sin() for number in range(1, parts + 1))

    def outer(h):
        h = h.sin().cos() if before else h * 2
        return checkpoint(inner, h) if nested else inner(h)

    group = GraphExecGroup()
    ys = checkpoint(outer, x)
    ys = [ys] if parts == 1 else ys
    note("held", ys)
    if apart:
        for turn, y in enumerate(ys):
            with group:
                y.backward(torch.ones_like(y), retain_graph=True)
            note(f"gradients {turn}", [x.grad])
    else:
        with group:
            for turn, y in enumerate(ys):
                y.backward(torch.ones_like(y), retain_graph=True)
                note(f"gradients {turn}", [x.grad])
    del group
    note("held with the graph", ys)


def unfinished(checkpoint: Any, note: Any, device: str, *, drop: str, length: int) -> None:
    from torch.utils.checkpoint import GraphExecGroup

    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x,))

    def function(h):
        other = h
        for _ in range(length):
            h, other = h.sin(), other.cos()
        return h, other

    group = GraphExecGroup()
    y, other = checkpoint(function, x)
    note("held", [y, other])
    with group:
        y.backward(torch.ones_like(y), retain_graph=True)
    note("gradients 0", [x.grad])
    if drop == "group":
        del group
        note("held without the group", [y, other])
    else:
        with group:
            other.backward(torch.ones_like(other))
        y = other = None
        note("empty", [])
