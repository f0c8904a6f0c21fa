"""Programs in which what a region owns reaches its own output, or is kept by it, and no backward ends that."""

from __future__ import annotations

from typing import Any

import torch


def reached(checkpoint: Any, note: Any, device: str, *, by: str, ends: str, regions: int, nested: bool) -> None:
    import gc

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    class Owner(torch.nn.Module):
        scale = 2.0

        def forward(self, h):
            return (h * self.scale).sin().exp()

    def function(owner, kept):
        if by == "argument":
            return lambda h, box: (h * box.scale).sin().exp()
        if by == "list":
            return lambda h: (h * 2.0 if kept is not None else h).sin().exp()
        return owner.forward

    owner, kept, y = Owner(), [], p * 1
    for _ in range(regions):
        given = [owner] if by == "argument" else []
        f = function(owner, kept)
        y = checkpoint(lambda h, *rest, f=f: checkpoint(f, h.cos(), *rest).tanh() if nested else f(h, *rest), y, *given)
    note("held", [y])
    result = y.detach() if ends == "values" else y
    if by == "list":
        kept.append(result)
    else:
        owner.result = result
    if ends == "backward":
        y.backward(torch.ones_like(y))
        note("gradients 0", [p.grad])
    del result, owner, kept, given, f, y
    gc.collect()
    note("empty", [])


def kept(checkpoint: Any, note: Any, device: str, *, by: str, steps: int, nested: bool) -> None:
    import gc

    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, w))

    class Owner(torch.nn.Module):
        results = ()

        def forward(self, h):
            self.results = [(h * w).sin()]
            return self.results[0].exp()

    def function(owner, kept):
        def listing(h):
            kept.append((h * w).sin())
            return kept[-1].exp()

        def assigning(h, box):
            box.results = [(h * w).sin()]
            return box.results[0].exp()

        return listing if by == "list" else assigning if by == "argument" else owner.forward

    for step in range(steps):
        owner, kept = Owner(), []
        f = function(owner, kept)
        given = [owner] if by == "argument" else []
        y = checkpoint(lambda h, *rest, f=f: checkpoint(f, h.cos(), *rest).tanh() if nested else f(h, *rest), p, *given)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, w.grad])
        del owner, kept, f, given, y
    gc.collect()
    note("empty", [])


def differentiated_later(checkpoint: Any, note: Any, device: str, *, order: str, nested: bool) -> None:
    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, w))

    class Owner(torch.nn.Module):
        def forward(self, h):
            if order == "a force inside":
                h = h.detach().requires_grad_()
            y = h * w
            self.auxiliary = y.sin()
            y = y.exp()
            return torch.autograd.grad(y.sum(), h, create_graph=True)[0] if order == "a force inside" else y

    owner = Owner()
    y = checkpoint((lambda h: checkpoint(owner, h.cos()).tanh()) if nested else owner, p)
    note("forward", y)
    ones = torch.ones_like(y)
    if order == "one after the other":
        note("grad 0", torch.autograd.grad(y, [p, w], ones, retain_graph=True))
        note("grad 1", torch.autograd.grad(owner.auxiliary, [p, w], ones))
    elif order == "a penalty":
        (grad,) = torch.autograd.grad(y, p, ones, create_graph=True)
        note("grad 0", torch.autograd.grad([y, grad * grad, owner.auxiliary], [p, w], [ones] * 3))
    else:
        note("grad 0", torch.autograd.grad([y, owner.auxiliary], w, [ones] * 2))


def overwritten(checkpoint: Any, note: Any, device: str, *, through: str, ends: str, nested: bool) -> None:
    import gc

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))

    def inner(h):
        return (h * 1.5).sin()

    h = p * 1
    y = checkpoint((lambda h: checkpoint(inner, h * 2).tanh()) if nested else inner, h)
    note("held", [h, y])
    result = y * 2 if through == "a result" else y
    h.copy_(result.detach() if ends == "values" else result)
    del h, y, result
    gc.collect()
    note("empty", [])


def detached(checkpoint: Any, note: Any, device: str, *, steps: int, where: str, nested: bool) -> None:
    import gc

    w = torch.randn(2, 2, device=device, requires_grad=True)
    h = torch.randn(2, 2, device=device)
    note("leaves", (w,))

    def inside(h, w):
        return (h.detach() * w).sin()

    def outside(h, w):
        return (h * w).sin()

    inner = inside if where == "inside" else outside
    for step in range(steps):
        h = h if where == "inside" else h.detach()
        h = checkpoint((lambda h, w: checkpoint(inner, h, w).cos()) if nested else inner, h, w)
        gc.collect()
        note(f"step {step}", [h])
