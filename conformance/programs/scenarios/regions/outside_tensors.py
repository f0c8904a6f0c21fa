"""Programs whose functions return, retain gradients of, or change in place, tensors that were there before."""

from __future__ import annotations

import torch


def returned(checkpoint, note, device, *, held, view, used, nested):
    p, buffer = torch.randn(2, 2, device=device, requires_grad=True), torch.full((2, 2), 3.0, device=device)
    note("leaves", (p,))
    calls = []
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", buffer)
        def forward(self, h):
            calls.append(None)
            if len(calls) > 8:
                raise KeyError("it runs without end")
            mask = self.mask if held == "module" else buffer
            return h.sin() * h, mask, (mask[0] if view else mask)
    layer = Layer()
    layer = layer if held == "module" else lambda h: Layer.forward(None, h)
    def outer(h):
        y, *others = checkpoint(layer, h.exp()) if nested else layer(h.exp())
        return y.tanh(), *others
    y, mask, part = checkpoint(outer, p)
    note("forward", (y, mask, part))
    note("the buffer", (buffer, mask is buffer, part._base is buffer, buffer.is_leaf))
    (y * mask * part if used else y).sum().backward()
    note("gradients 0", [p.grad])
    part.mul_(2)
    note("the buffer in the end", (buffer, mask))


def hooked_later(checkpoint, note, device, *, put, before, own, leaf, passes, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    fired, alive, done = [], [], []
    def put_on(h):
        if put == "retain":
            h.retain_grad()
        else:
            h.register_hook(lambda grad: grad * 2 if put == "changing" else fired.append(None))
    def forces(h):
        if own == "always" or (own == "once" and not done):
            done.append(h.register_hook(lambda grad: grad * 5))
        (force,) = torch.autograd.grad(h.sin(), h, torch.ones_like(h), create_graph=True)
        return force.tanh()
    def outer(h):
        if nested == "inside":
            return checkpoint(forces, h)
        h = h.exp()
        alive.append(h)
        if before:
            h.register_hook(lambda grad: grad * 3)
        y = checkpoint(forces, h)
        put_on(h)
        return y
    x = p if leaf else p.exp()
    if before:
        x.register_hook(lambda grad: grad + 1)
    y = checkpoint(outer if nested else forces, x)
    put_on(x)
    for step in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {step}", [p.grad])
        if put == "retain":
            note(f"retained {step}", x.grad)
        note(f"hooks fired {step}", len(fired))


def retaining(checkpoint, note, device, *, around, passes):
    from contextlib import nullcontext
    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, w))
    h = p.exp()
    def inner(h):
        h.retain_grad()
        return (h * w).sin()
    def outer(h):
        return (checkpoint(inner, h) if around == "region" else inner(h)).exp()
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.detach) if around == "copies" else nullcontext():
        y = checkpoint(outer, h)
    note("forward", y)
    for turn in range(passes):
        y.backward(torch.ones_like(y), retain_graph=True)
        note(f"gradients {turn}", [p.grad, w.grad])
        note(f"retained {turn}", h.grad)


def passed_and_closed_over(checkpoint, note, device, *, copied):
    from contextlib import nullcontext
    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, w))
    h = p.exp()
    def inner(a, b):
        return (a * w).sin() * (3 if a is b else b)
    def outer(a):
        return checkpoint(inner, a, h).exp() * w
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.detach) if copied else nullcontext():
        y = checkpoint(outer, h)
    note("forward", y)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad, w.grad])


def changing(checkpoint, note, device, *, change, read, through, nested):
    p, w = (torch.randn(2, 2, device=device, requires_grad=True) for _ in range(2))
    note("leaves", (p, w))
    b = p.exp()
    def inner(h):
        part = b[0] if change == "in part" else b
        part.mul_(w[0] if change == "in part" else w)
        return (h.cos() * b if read else h.cos()), b
    def around(h):
        y, z = checkpoint(inner, h.exp()) if nested else inner(h.exp())
        return y.tanh(), z
    y, z = checkpoint(around if through or nested else inner, p)
    note("forward", (y, z))
    (y.sum() + z.sum()).backward()
    note("gradients 0", [p.grad, w.grad])
