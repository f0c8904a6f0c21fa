"""Programs that register or replace hooks on the arguments of a function that is run again."""

from __future__ import annotations

import torch


def inside(checkpoint, note, device, *, module, beside, steps, passes, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    class Hooking(torch.nn.Module):
        handle = None
        def forward(self, h):
            if self.handle is not None:
                self.handle.remove()
            if h.requires_grad:
                self.handle = h.register_hook(lambda grad: grad * 3)
            return h.sin() * h
    layer = Hooking()
    layer = layer if module else layer.forward
    def outer(h):
        h = h.exp()
        if beside and h.requires_grad:
            h.register_hook(lambda grad: grad + 1)
        return (checkpoint(layer, h) if nested else layer(h)).tanh()
    for step in range(steps):
        y = checkpoint(outer, p)
        note(f"forward {step}", y)
        for number in range(passes):
            y.backward(torch.ones_like(y), retain_graph=True)
            note(f"gradients {step} {number}", [p.grad])
    (layer if module else layer.__self__).handle.remove()
    y.backward(torch.ones_like(y))
    note("gradients without", [p.grad])


def at_the_end(checkpoint, note, device, *, kind, steps, passes, nested):
    from torch.autograd.graph import get_gradient_edge
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    handles, fired = [], []
    def inner(h):
        return h.cos() * h
    def f(h):
        while handles:
            handles.pop().remove()
        y = (checkpoint(inner, h) if nested else inner(h)).exp()
        if kind == "tensor":
            handles.append(h.register_hook(lambda grad: grad * 3))
        elif kind == "accumulation":
            handles.append(h.register_post_accumulate_grad_hook(lambda leaf: fired.append(None)))
        else:
            handles.append(get_gradient_edge(h).node.register_prehook(lambda grads: (grads[0] * 3,)))
        return y
    for step in range(steps):
        y = checkpoint(f, p)
        note(f"forward {step}", y)
        for number in range(passes):
            y.backward(torch.ones_like(y), retain_graph=True)
            note(f"gradients {step} {number}", [p.grad])
            note(f"hooks fired {step} {number}", len(fired))


def hooked_meanwhile(checkpoint, note, device, *, kind, leaf, hooking, removing, nested):
    import threading

    from torch.autograd.graph import get_gradient_edge
    p = torch.randn(2, 2, device=device, requires_grad=True)
    note("leaves", (p,))
    x = p if leaf else p.exp()
    calls, handles, fired = [], [], []
    def register():
        if kind == "tensor":
            handles.append(x.register_hook(lambda grad: grad * 2))
        elif kind == "before the node":
            handles.append(get_gradient_edge(x).node.register_prehook(lambda grads: (grads[0] * 2,)))
        else:
            handles.append(get_gradient_edge(x).node.register_hook(lambda *grads: fired.append(None)))
    def inner(h):
        return h.cos() * h
    def f(h):
        if hooking:
            h.register_hook(lambda grad: grad + 1)
        calls.append(None)
        if len(calls) == 2:
            thread = threading.Thread(target=register)
            thread.start()
            thread.join()
        return (checkpoint(inner, h) if nested else inner(h)).tanh()
    y = checkpoint(f, x)
    note("forward", y)
    y.backward(torch.ones_like(y), retain_graph=True)
    if not handles:
        register()
    if removing:
        handles.pop().remove()
    p.grad = None
    fired.clear()
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("hooks fired 0", len(fired))


def on_a_module_for_a_while(checkpoint, note, device, *, steps, nested):
    p = torch.randn(2, 2, device=device, requires_grad=True)
    layer = torch.nn.Linear(2, 2).to(device)
    note("leaves", (p, *layer.parameters()))
    def halve(module, given, result):
        return result * 0.5
    handles = [layer.register_forward_hook(halve)]
    def f(h):
        handles.pop().remove()
        y = layer(h)
        handles.append(layer.register_forward_hook(halve))
        (grad,) = torch.autograd.grad(layer(y).exp().sum(), y, create_graph=True)
        return grad
    for step in range(steps):
        y = checkpoint((lambda h: checkpoint(f, h).exp()) if nested else f, p)
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, *(q.grad for q in layer.parameters())])
        note(f"hooks {step}", len(layer._forward_hooks))
