"""Programs whose compiled regions do something in their first run alone."""

from __future__ import annotations

from typing import Any

import torch


def in_the_first_run(checkpoint: Any, note: Any, device: str, *, backend: str, switched: str) -> None:
    """An operator runs until a switch is off; the region switches it off, so that it runs in forward only, or its caller."""
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    p = torch.randn(3, 3, device=device, requires_grad=True)
    policy = lambda: create_selective_checkpoint_contexts([torch.ops.aten.sin.default])  # noqa: E731 - as scripts show it

    class State:
        first = True

    state = State()

    def f(h):
        if state.first:
            h = h.sin()
            if switched == "inside":
                state.first = False
        return h.sin().exp()

    def whole(region, **options):
        y = region(f, p, **options)
        if switched == "after":
            state.first = False
        return y

    def twice(run):
        state.first, found = True, []
        for _ in range(2):
            y = run()
            y.backward(torch.ones_like(y))
            found += [y, p.grad, state.first]
            p.grad = None
        return found

    due = twice(lambda: whole(lambda g, h: g(h)))
    note("expected calls", due)
    note("gradients 0", [due[1], due[4]])
    note("seen calls", twice(torch.compile(lambda: whole(checkpoint, context_fn=policy), backend=backend, fullgraph=True)))
