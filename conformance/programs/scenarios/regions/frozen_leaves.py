"""Programs in which leaves are frozen or unfrozen before backward, and about tensors that were made in inference mode."""

from __future__ import annotations

from typing import Any

import torch


def frozen(
    checkpoint: Any, note: Any, device: str, *, unfreeze: bool, passed: bool, drop: bool, body: str, nested: bool
) -> None:
    x = torch.randn(2, 2, device=device, requires_grad=True)
    p = torch.randn(2, 2, device=device, requires_grad=not unfreeze)
    note("leaves", (x,))

    def inner(h, q):
        q = q if passed else p
        if body == "alone":
            return h * q, h.cos()
        if body == "beside":
            aside = (q * 2) * h
            return h.sin(), aside
        h = (h * q if body == "product" else h + q.sin()).sin()
        return h, h.cos()

    def outer(h, q):
        h, aside = checkpoint(inner, h.tanh(), q)
        return h.sin(), aside

    given = x if body == "alone" else x * 1
    y, aside = checkpoint(outer if nested else inner, given, p)
    y = y if drop else y + aside
    del aside
    note("forward", y)
    p.requires_grad_(unfreeze)
    y.backward(torch.ones_like(y))
    note("gradients 0", [x.grad])
    note("gradient of what was changed", p.grad)


def inference(checkpoint: Any, note: Any, device: str, *, first: bool, passes: int, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    with torch.inference_mode():
        c = torch.randn(2, 2, device=device)
    seen = []

    def inner(h, c):
        seen.append((c.is_inference(), c.requires_grad))
        return (h + c).sin()

    def outer(c, h):
        h = h.cos()
        return (checkpoint(inner, h, c) if nested else inner(h, c)).exp()

    y = checkpoint(outer, c, p) if first else checkpoint(lambda h, c: outer(c, h), p, c)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad])
    note("what the functions saw", str(sorted(set(seen))))
