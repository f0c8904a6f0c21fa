"""Programs about modules that are more than their parameters."""

from __future__ import annotations

import torch


def stateful(checkpoint, note, device, *, kind, steps):
    p = torch.randn(4, 3, device=device, requires_grad=True)
    if kind == "spectral norm":
        m = torch.nn.utils.parametrizations.spectral_norm(torch.nn.Linear(3, 3, device=device))
    else:
        m = torch.nn.BatchNorm1d(3, momentum=None if kind == "average" else 0.1, device=device)
    note("leaves", (p, *m.parameters()))
    for step in range(steps):
        y = checkpoint(m, p)
        note(f"forward {step}", y)
        y.backward(torch.ones_like(y))
        note(f"gradients {step}", [p.grad, *(each.grad for each in m.parameters())])
        note(f"buffers {step}", [*m.buffers()])
