"""Programs in which torch.func differentiates or maps a region, or a part of what it does."""

from __future__ import annotations

import torch


def transforms(checkpoint, note, device, *, transform, inside, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    x = torch.randn(2, 2, device=device)
    note("leaves", (p,))
    def applied(function, h):
        if transform == "grad":
            return torch.func.grad(lambda z: function(z).sum())(h)
        if transform == "vjp":
            return torch.func.vjp(function, h)[1](torch.ones_like(h))[0]
        if transform == "jvp":
            return torch.func.jvp(function, (h,), (torch.ones_like(h),))[1]
        return torch.func.vmap(function)(h)
    def inner(h):
        return h.sin() * p
    def f(h):
        h = applied(inner, h) if inside else inner(h)
        return checkpoint(torch.cos, h) if nested else h.cos()
    y = checkpoint(f, p * 2) if inside else applied(lambda h: checkpoint(f, h), x)
    note("grad or value", y)
    if y.requires_grad:
        y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
