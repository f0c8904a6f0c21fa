"""Programs that change an output in place, try a backward again after an error, or have contexts around forward alone."""

from __future__ import annotations

import torch


def residual(checkpoint, note, device, *, kind, passes, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    def f(h):
        return h.sin() + 1  # a sum saves no result, so the result may change
    def pair(h):
        return h.sin() + 1, h.cos() + 1
    g = pair if kind == "one of two" else f
    def outer(h):
        return checkpoint(g, h * 2)
    y = checkpoint(outer if nested else g, p)
    if kind == "sum":
        y += p
    if kind == "activation":
        y = torch.nn.functional.relu(y, inplace=True)
    if kind == "item":
        y[0] = p[0] * 2
    if kind == "view":
        y.view(-1).mul_(2)
    if kind == "one of two":
        y, other = y
        y += other
    if kind == "between regions":
        y = checkpoint(f, y)
        y += p
        y = checkpoint(f, y)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=turn < passes - 1)
        note(f"gradients {turn}", [p.grad])


def tried_again(checkpoint, note, device, *, where, inner, retained, nested):  # noqa: C901 - of its branches one is printed
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    armed = []
    def check(*_):
        if armed:
            raise ValueError(armed.pop())
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clone()
        @staticmethod
        def backward(ctx, grad):
            check()
            return grad
    def checked(h):
        if where == "function":
            return Checked.apply(h)
        if h.requires_grad:
            h.register_hook(check)
        return h
    def f(h):
        h = h.sin()
        if inner:
            h = checked(h)
        return h.cos()
    def outer(h):
        return checkpoint(f, h.exp())
    def forward():
        y = checkpoint(outer if nested else f, p)
        if not inner:
            y = checked(y)
        return checkpoint(f, y) if not inner else y
    y = forward()
    armed.append("program")
    try:
        y.backward(torch.ones_like(y), retain_graph=True)
    except ValueError as error:
        note("came", str(error))
    p.grad = None
    if not retained:
        y = forward()
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])


def around_forward_alone(checkpoint, note, device, *, kind, nested):
    p = torch.randn(1, 2, 3, 4, device=device, requires_grad=True)
    w = torch.randn(4, 4, device=device, requires_grad=True)
    note("leaves", (p, w))
    if kind == "attention":
        around = torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)
    if kind == "library":
        around = torch.backends.mkldnn.flags(enabled=False)
    if kind == "threads":
        around = torch.autograd.set_multithreading_enabled(False)
    def f(h):
        h = h @ w
        return torch.nn.functional.scaled_dot_product_attention(h, h, h).sin()
    def outer(h):
        return checkpoint(f, h.cos())
    with around:
        y = checkpoint(outer if nested else f, p)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad])
