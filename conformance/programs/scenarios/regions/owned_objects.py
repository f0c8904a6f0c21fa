"""Programs about arguments that a copy cannot stand in for."""

from __future__ import annotations

from typing import Any

import torch


def finalized(checkpoint: Any, note: Any, device: str, *, changed: bool, inherited: bool, nested: bool, passes: int) -> None:
    from dataclasses import dataclass

    ended = []

    class Owner:
        def __del__(self):
            ended.append(None)

    @dataclass
    class Box(Owner if inherited else object):
        value: object
        if not inherited:
            __del__ = Owner.__del__

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h, box):
        if changed:
            box.used = True
        return (h * box.value).sin()

    def outer(h, box):
        return (checkpoint(inner, h.cos(), box) if nested else inner(h.cos(), box)).exp()

    box = Box(p.detach().exp())
    y = checkpoint(outer, p, box)
    note("forward", y)
    for number in range(passes):
        y.backward(torch.ones_like(y), retain_graph=number < passes - 1)
        note(f"gradients {number}", [p.grad])
        note(f"boxes that ended {number}", len(ended))


def also_an_attribute(checkpoint: Any, note: Any, device: str, *, kind: str, calls: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    cache = {"list": [None], "dict": {}}[kind]

    def f(h, given):
        given[0] = h.sin()
        return cache[0].exp() * cache[0]

    ys = [checkpoint(f, p * factor, cache) for factor in range(1, calls + 1)]
    note("forward", ys)
    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])
    note("gradients 0", [p.grad])


def passed_inside_alone(
    checkpoint: Any, note: Any, device: str, *, held: int, calls: int, ends: bool, change: str, first: bool
) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    cache = [p.detach() * number for number in range(held)]

    def f(h, given):
        if change == "inside":
            given.append(h.sin())
        return h.exp()

    def g(given, h):
        return f(h, given)

    def outer(h):
        h = h.cos()
        y = checkpoint(g, cache, h) if first else checkpoint(f, h, cache)
        return y if ends else y.sin() * h

    ys = [checkpoint(outer, p * factor) for factor in range(1, calls + 1)]
    if change == "later":
        cache.append(p.detach())
    note("forward", ys)
    torch.autograd.backward(ys, [torch.ones_like(y) for y in ys])
    note("gradients 0", [p.grad])
