"""Programs in which a higher-order operator writes: the function that it is passed changes a tensor in place.

They call the operators themselves. ``torch.cond`` and ``torch.while_loop`` have Dynamo trace what they are passed, and that
refuses to trace such a change.
"""

from __future__ import annotations

from typing import Any

import torch

from conformance.programs.scenarios.offload.building_blocks import here


def writing(
    checkpoint: Any, note: Any, device: str, *, operator: str, written: str, order: str, nested: bool
) -> None:
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch._higher_order_ops.wrap import wrap

    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    holder = torch.nn.Module()
    holder.register_buffer("scale", torch.ones(2, 2, device=device, dtype=torch.float64))
    table = torch.ones(2, 2, device=device, dtype=torch.float64)

    def write(t):
        return t.mul_(2).clone()

    def call(t):
        if operator == "cond":
            cond_op(torch.ones((), device=device, dtype=torch.bool), write, torch.clone, (t,))
        if operator == "while_loop":
            while_loop_op(lambda i, t: i < 1, lambda i, t: (i + 1, write(t)), (torch.zeros((), dtype=torch.int64), t), ())
        if operator == "wrap":
            wrap(write, t)

    def inner(h):
        h = h.sin()
        t = holder.scale if written == "a buffer" else table if written == "a tensor outside" else h
        if order == "saved first":
            h = h * t
        with torch.no_grad():
            call(t)
        return h.exp() if order == "saved first" else (h * t).exp()

    def outer(h):
        return checkpoint(inner, h.cos()) + 1 if nested else inner(h)

    y = checkpoint(outer, p)
    note("forward", y)
    note("written", [holder.scale, table])
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("written after backward", [holder.scale, table])


def writing_offloaded(OffloadModel, note, device, place, *, operator, quiet, order, slices, checkpoint):  # noqa: N803
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch._higher_order_ops.wrap import wrap

    def write(t):
        (t.data if quiet else t).mul_(2)
        return t.clone()

    class Scaling(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("scale", torch.ones(2))

        def forward(self, x):
            x = x.sin() * (self.scale.clone() if order == "read first" else 1)
            with torch.no_grad():
                if operator == "cond":
                    cond_op(torch.ones((), dtype=torch.bool), write, torch.clone, (self.scale,))
                if operator == "while_loop":
                    start = torch.zeros((), dtype=torch.int64), self.scale
                    while_loop_op(lambda i, t: i < 1, lambda i, t: (i + 1, write(t)), start, ())
                if operator == "wrap":
                    wrap(write, self.scale)
            return x if order == "read first" else x * self.scale.clone()

    model = OffloadModel([torch.nn.Linear(2, 2), Scaling()], place, num_slices=slices, checkpoint_activation=checkpoint)
    note("leaves", tuple(model.parameters()))
    for step in range(2):
        y = model(torch.randn(3, 2, device=place))
        note(f"forward {step}", here([y]))
        y.sum().backward()
        note(f"gradients {step}", here(p.grad for p in model.parameters()))
        note(f"buffers {step}", here(model.buffers()))


def counting(checkpoint: Any, note: Any, device: str, *, operator: str, nested: bool) -> None:
    from torch._higher_order_ops.cond import cond_op
    from torch._higher_order_ops.while_loop import while_loop_op
    from torch._higher_order_ops.wrap import wrap

    p = torch.randn(2, 2, device=device, dtype=torch.float64, requires_grad=True)
    note("leaves", (p,))
    calls = torch.zeros(2, device=device)

    def count(t):
        return t.add_(1).clone()

    def inner(h):
        if operator == "cond":
            cond_op(torch.ones((), device=device, dtype=torch.bool), count, torch.clone, (calls,))
        if operator == "while_loop":
            start = torch.zeros((), dtype=torch.int64), calls
            while_loop_op(lambda i, t: i < 1, lambda i, t: (i + 1, count(t)), start, ())
        if operator == "wrap":
            wrap(count, calls)
        return h.sin().exp()

    y = checkpoint((lambda h: checkpoint(inner, h.cos())) if nested else inner, p)
    note("forward", y)
    note("calls in forward", calls)
    y.backward(torch.ones_like(y))
    note("gradients 0", [p.grad])
    note("calls after backward", calls)
