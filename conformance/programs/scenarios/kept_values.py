"""Programs whose function makes a tensor, keeps it somewhere, and makes another one with other values when it runs again."""

from __future__ import annotations

from typing import Any

import torch


def computed_anew(
    checkpoint: Any, note: Any, device: str, *, source: str, kept: str, saved: str, tries: int, nested: bool
) -> None:
    import random
    from contextlib import suppress

    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    runs, masks, held = [], [], torch.nn.Module()
    generator, numbers = torch.Generator().manual_seed(0), random.Random(0)

    def make():
        if source == "a counter":
            runs.append(True)
            return torch.full((2, 2), len(runs), device=device, dtype=torch.float64)
        if source == "a generator":
            return torch.rand(2, 2, generator=generator, dtype=torch.float64).to(device)
        return torch.tensor([[numbers.random() for _ in range(2)] for _ in range(2)], device=device, dtype=torch.float64)

    def inner(h):
        mask = make()
        if kept == "an attribute":
            held.mask = mask
        else:
            masks.append(mask)
        return (h.sin() * (mask if saved == "the whole" else mask[0])).exp()

    def outer(h):
        return checkpoint(inner, h.cos()) if nested else inner(h)

    y = checkpoint(outer, p)
    note("forward", y)
    for _ in range(tries - 1):
        with suppress(RuntimeError):
            y.backward(torch.ones_like(y), retain_graph=True)
        p.grad = None
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def unchecked(checkpoint: Any, note: Any, device: str, *, kept: str, nested: bool) -> None:
    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    runs, masks, held = [], [], torch.nn.Module()

    def inner(h):
        runs.append(True)
        mask = torch.full((2, 2), len(runs), device=device, dtype=torch.float64)
        if kept == "an attribute":
            held.mask = mask
        else:
            masks.append(mask)
        return (h.sin() * mask).exp()

    y = checkpoint((lambda h: checkpoint(inner, h)) if nested else inner, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("seen gradients", [p.grad])
    last = (p.sin() * len(runs)).exp()
    note("expected gradients", [*torch.autograd.grad(last, p, torch.ones_like(last))])
