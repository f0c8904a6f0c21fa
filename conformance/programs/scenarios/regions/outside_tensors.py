"""Programs whose functions return, or change in place, tensors that were there before and that they were not passed."""

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
