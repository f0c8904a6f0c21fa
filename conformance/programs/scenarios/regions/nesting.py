"""Programs about regions in regions, hooks around them, and backward inside them."""

from __future__ import annotations

from typing import Any

import torch


def chain(checkpoint: Any, note: Any, device: str, *, depth: int, before: bool) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x,))
    def level(number):
        def function(h):
            h = h.tanh() if before else h
            h = checkpoint(level(number + 1), h) if number < depth else h
            return h.sin()
        function.__name__ = f"level {number}"
        return function
    y = checkpoint(level(1), x)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad])


def siblings(checkpoint: Any, note: Any, device: str, *, siblings: int) -> None:
    x, y = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (x, y))
    def parent(x, y):
        h = torch.sin(x)
        for _ in range(siblings):
            h = h + checkpoint(lambda a, b: torch.tanh(a * b), h, y)
        return h * y
    z = checkpoint(parent, x, y)
    note("forward", z)
    z.backward(torch.ones_like(z))
    note("gradients 0", [x.grad, y.grad])


def hooks(
    checkpoint: Any, note: Any, device: str, *, outside: bool, between: bool, innermost: bool, backward: bool, nested: bool
) -> None:
    from contextlib import nullcontext
    hooks = torch.autograd.graph.saved_tensors_hooks
    def doubled(used):
        return hooks(lambda t: [t.clone() * 2], lambda packed: packed[0] / 2) if used else nullcontext()
    x = torch.randn(2, 2, device=device, requires_grad=True)
    w = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x, w))
    def inner(h):
        with doubled(innermost):
            h = (h * w).sin()
        return h.tanh()
    def outer(h):
        h = h.cos()
        with doubled(between):
            h = checkpoint(inner, h) if nested else inner(h)
        return h * h
    with doubled(outside):
        y = checkpoint(outer, x * 1)
    note("forward", y)
    with hooks(lambda t: t * 0, lambda t: t * 0) if backward else nullcontext():
        y.backward(torch.ones_like(y), retain_graph=True)
        note("gradients 0", [x.grad, w.grad])
        y.backward(torch.ones_like(y))
    note("gradients 1", [x.grad, w.grad])


def backward_inside(
    checkpoint: Any, note: Any, device: str, *, of: str, retain: bool, times: int, depth: int, region: bool
) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    w = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x, w))
    def part(h):
        return (h * w).sin()
    def function(h):
        h = h.cos()
        at = h.detach().requires_grad_() if of == "a detached leaf" else h
        loss = (checkpoint(part, at) if region else part(at)).sum()
        total = 0
        for left in reversed(range(times)):
            (g,) = torch.autograd.grad(loss, at, retain_graph=retain or left > 0)
            total = total + g
        return (h * total).sin()
    def level(number):
        return function if number == 0 else lambda h: checkpoint(level(number - 1), h.tanh()).sin()
    y = checkpoint(level(depth), x)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad, w.grad])


def penalty_inside(checkpoint: Any, note: Any, device: str, *, again: bool, region: bool, nested: bool) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    w = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x, w))
    def part(h):
        return (h * w).sin()
    def function(h):
        h = h.cos()
        loss = (checkpoint(part, h) if region else part(h)).sum()
        (g,) = torch.autograd.grad(loss, h, create_graph=True)
        return g * g
    y = checkpoint(lambda h: checkpoint(function, h.tanh()).sin(), x) if nested else checkpoint(function, x)
    note("forward", y)
    y.backward(torch.ones_like(y), retain_graph=again)
    note("gradients 0", [x.grad, w.grad])
    if again:
        y.backward(torch.ones_like(y))
        note("gradients 1", [x.grad, w.grad])


def backward_of_another(checkpoint: Any, note: Any, device: str, *, accumulate: bool, nested: bool, last: bool) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    w = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x, w))
    def first(h):
        return h.sin().tanh()
    v = (w * 1).detach().requires_grad_() if accumulate else w
    z = checkpoint(lambda h: checkpoint(first, h.cos()), v) if nested else checkpoint(first, v)
    def second(h):
        h = h.sin()
        if accumulate:
            v.grad = None
            z.sum().backward(retain_graph=True)
            g = v.grad
        else:
            (g,) = torch.autograd.grad(z.sum(), v, retain_graph=True)
        return h * g if last else (h * g).cos()
    y = checkpoint(second, x)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad, w.grad])


def caught(checkpoint: Any, note: Any, device: str, *, nested: bool, operator: str, early: bool) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x,))
    fallbacks = []
    def function(h):
        h = h * 2
        try:
            h = getattr(torch, operator)(h)
            if early:
                return h
            return checkpoint(torch.cos, h) if nested else h.cos()
        except Exception:
            fallbacks.append("taken")
            return h * 0
    y = checkpoint(lambda h: checkpoint(function, h).sin(), x) if nested else checkpoint(function, x)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad])
    note("fallbacks", fallbacks)


def backward_in_a_hook(checkpoint: Any, note: Any, device: str, *, after: bool, nested: bool) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (x,))
    inside = []
    def look(gradient):
        if not inside:
            inside.append(None)
            inside[:] = torch.autograd.grad(y, x, torch.ones_like(y), retain_graph=True)
    def function(h):
        h = h.sin()
        if h.requires_grad:
            h.register_hook(look)
        return h.cos().tanh() if after else h.cos()
    y = checkpoint(lambda h: checkpoint(function, h.tanh()).sin(), x) if nested else checkpoint(function, x)
    note("forward", y)
    y.backward(torch.ones_like(y), retain_graph=True)
    note("gradients 0", [x.grad])
    note("grad in the hook", inside)
