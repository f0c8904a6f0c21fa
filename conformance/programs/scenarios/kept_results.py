"""Programs whose regions change in place what a selective policy keeps: the results of matrix products."""

from __future__ import annotations

from typing import Any

import torch


def changed(checkpoint: Any, note: Any, device: str, *, change: str, reader: str, after: int, nested: bool) -> None:
    p, w = (torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True) for _ in range(2))
    note("leaves", (p, w))

    def inner(h):
        k = h @ w
        if change == "the whole":
            k.mul_(2)
        if change == "a row":
            k[0].mul_(2)
        if change == "an alias":
            k.detach().add_(1)
        if change == "without grad":
            with torch.no_grad():
                k.add_(1)
        if change == "an activation":
            k.sigmoid_()
        if change == ".data":
            k.data.add_(1)
        if change == "a chunk":
            chunks = k.unsafe_chunk(2)
            chunks[0].sigmoid_()
            k = torch.cat(chunks)
        k = k.sin() if reader == "sin" else k.square() if reader == "square" else k.exp()
        for _ in range(after):
            k = k.cos()
        return k

    def outer(h):
        return checkpoint(inner, h.sin()).cos() if nested else inner(h)

    y = checkpoint(outer, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad])
