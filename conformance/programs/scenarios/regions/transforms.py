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
        if transform == "functionalize":
            return torch.func.functionalize(function)(h)
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


def traced(checkpoint, note, device, *, nested, mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    p, q = (torch.randn(3, device=device) for _ in range(2))
    def inner(h, w):
        h = (h * w).cos()
        return h.exp() * h
    def outer(h, w):
        h = h.sin()
        h = checkpoint(inner, h, w) if nested else inner(h, w)
        return h * w
    def step(x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = checkpoint(outer, x, w)
        y.backward(torch.ones_like(y))
        return x.grad, w.grad
    graph = make_fx(step, tracing_mode=mode)(p, q)
    for index in range(2):
        note(f"gradients {index}", list(graph(p + index, q * (1 + index))))


def gradients_inside(checkpoint, note, device, *, body, then, around):
    from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def f(h):
        h = h * 1
        y = h.tanh() if body == "tanh" else h.sigmoid() if body == "sigmoid" else h.sin() * h
        gradient = torch.autograd.grad(y.sum(), h, create_graph=True)[0]
        return gradient.exp() if then else gradient
    y = checkpoint(f, p * 1)
    with Mode() if around else torch.enable_grad():
        y.backward(torch.ones_like(y))
        note("modes", len(_get_current_dispatch_mode_stack()))
    note("gradients 0", [p.grad])
