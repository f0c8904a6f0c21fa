"""Programs under autocast."""

from __future__ import annotations

from typing import Any

import torch


def autocast(
    checkpoint: Any,
    note: Any,
    device: str,
    *,
    around: str,
    inside: str,
    backward: str,
    cache: bool,
    other: bool,
    passes: int,
    nested: bool,
) -> None:
    from contextlib import nullcontext

    def cast(name, cache=cache):
        kind = torch.device(device).type
        if name is None:
            return nullcontext()
        return torch.autocast(kind, enabled=name != "off", dtype=getattr(torch, name, None), cache_enabled=cache)

    leaves = [torch.randn(2, 2, device=device, requires_grad=True) for _ in range(4)]
    note("leaves", leaves)
    x, u, v, w = leaves
    seen = []

    def inner(h):
        h = h @ v
        seen.append(("inner", h.dtype, torch.is_autocast_cache_enabled()))
        return h.sin()

    def outer(h):
        h = h @ u
        seen.append(("outer", h.dtype, torch.is_autocast_cache_enabled()))
        with cast(inside):
            h = checkpoint(inner, h.float()) if nested else inner(h.float())
        return h.float() @ w

    with cast(around):
        y = checkpoint(outer, x)
    note("forward", y)
    with cast(backward, cache != other):
        for turn in range(passes):
            y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
            note(f"gradients {turn}", [leaf.grad for leaf in leaves])
    note("what the functions saw", str(sorted(map(str, set(seen)))))


def shared_weight(
    checkpoint: Any, note: Any, device: str, *, cache: bool, order: str, steps: int, outside: bool
) -> None:
    # Small integers are exact in bfloat16, so the order of sums does not matter.
    x, w = (torch.tensor([[1.0, 2.0], [0.0, n]], device=device, requires_grad=True) for n in (1.0, -1.0))
    note("leaves", (x, w))
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, cache_enabled=cache):
        for step in range(steps):
            y = x @ w if order == "before" else x * 1
            y = checkpoint(lambda h: h @ w, y)
            y = y @ w if order == "after" else checkpoint(lambda h: h * (h > 0), y)
            note(f"forward {step}", y)
            if not outside:
                y.backward(torch.ones_like(y))
                note(f"gradients {step}", [x.grad, w.grad])
    if outside:
        y.backward(torch.ones_like(y))
        note(f"gradients {steps}", [x.grad, w.grad])


def elsewhere(checkpoint: Any, note: Any, device: str, *, dtype: str, passes: int, nested: bool) -> None:
    from concurrent.futures import ThreadPoolExecutor

    x, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (x, w))

    def inner(h):
        return (h @ w).sin().float()

    def outer(h):
        return (checkpoint(inner, h.cos()) if nested else inner(h)) @ w

    with torch.autocast(torch.device(device).type, dtype=getattr(torch, dtype), cache_enabled=False):
        y = checkpoint(outer, x)
    note("forward", y)
    with ThreadPoolExecutor(1) as pool:
        for turn in range(passes):
            pool.submit(y.backward, torch.ones_like(y), retain_graph=True).result()
            note(f"gradients {turn}", [x.grad, w.grad])


def switched_by_hand(checkpoint: Any, note: Any, device: str, *, around: bool, nested: bool) -> None:
    kind = torch.device(device).type
    x, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (x, w))

    def inner(h):
        cached = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(not cached)
        h = h @ w
        h = h * h
        torch.set_autocast_cache_enabled(cached)
        return h.float()

    def outer(h):
        return checkpoint(inner, h.cos()) @ w

    for step in range(2):
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=around):
            y = (checkpoint(outer, x) if nested else checkpoint(inner, x)).float()
            note(f"forward {step}", y)
            note(f"cached after forward {step}", torch.is_autocast_cache_enabled())
            y.backward(torch.ones_like(y))
            note(f"cached after backward {step}", torch.is_autocast_cache_enabled())
        note(f"cached {step}", torch.is_autocast_cache_enabled())
        note(f"gradients {step}", [x.grad, w.grad])


def replaced(checkpoint: Any, note: Any, device: str, *, how: str, together: bool, nested: bool) -> None:
    p = torch.randn(4, 4, device=device, requires_grad=True)
    weights = [torch.nn.Parameter(torch.randn(4, 4, device=device)) for _ in range(2 if how == "late" else 1)]
    note("leaves", (p, *weights))
    read = [weights[0]]

    def inner(h):
        return (h @ read[0]).tanh()

    def outer(h):
        return checkpoint(inner, h) if nested else inner(h)

    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        y = p @ weights[0] if together else p
        for weight in weights:
            read[0] = weight
            y = checkpoint(outer, y)
    note("forward", y)
    if how == "assigned":
        read[0] = torch.nn.Parameter(torch.randn(4, 4, device=device))
    elif how == "data":
        weights[0].data = torch.randn(4, 4, device=device)
    elif how == "changed":
        with torch.no_grad():
            weights[0].zero_()
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(weight.grad for weight in weights)])


def computed(checkpoint: Any, note: Any, device: str, *, how: str, regions: int) -> None:
    p = torch.randn(4, 4, device=device, requires_grad=True)
    weights = [torch.randn(4, 4, device=device, requires_grad=True) for _ in range(regions)]
    note("leaves", (p, *weights))
    bodies = {
        "a sum": lambda h, w: h @ (w + 1),
        "a cast": lambda h, w: h.double() @ w.double(),
        "nothing": lambda h, w: h + w,
        "autocast": lambda h, w: h @ w,
    }
    body, y = bodies[how], p
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=how == "autocast", cache_enabled=False):
        for w in weights:
            y = checkpoint(lambda h: body(h, w).tanh(), y)  # noqa: B023 - a name that is bound late
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, *(weight.grad for weight in weights)])


def kept_or_cast_anew(checkpoint: Any, note: Any, device: str, *, how: str, nested: bool) -> None:
    kind = torch.device(device).type
    p = torch.randn(4, 4, device=device, requires_grad=True)
    layer = torch.nn.Linear(4, 4, device=device)
    weight = layer.weight
    note("leaves", (p, weight))
    low = [weight.bfloat16()]

    def inner(h):
        h = h.bfloat16() @ low[0] if how == "kept" else layer(h)
        return h.float().sin()

    def outer(h):
        return checkpoint(inner, h.cos()) if nested else inner(h.cos())

    with torch.autocast(kind, dtype=torch.bfloat16, enabled=how != "kept"):
        y = checkpoint(outer, p)
    note("forward", y)
    if how == "kept":
        with torch.no_grad():
            weight.mul_(2)
    elif how == "equal":
        layer.weight = torch.nn.Parameter(weight.detach().clone())
    elif how == "data":
        layer.weight.data = weight.detach().clone()
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, weight.grad])
