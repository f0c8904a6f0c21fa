"""Programs whose regions inductor compiles: their results are plain's up to rounding."""

from __future__ import annotations

from typing import Any

import torch


def kinds_of_regions(checkpoint: Any, note: Any, device: str, *, kind: str) -> None:
    from torch._inductor import config
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    w = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(2, 4, device=device, requires_grad=True)
    policy = lambda: create_selective_checkpoint_contexts([torch.ops.aten.mm.default])  # noqa: E731 - as scripts show it
    options = {"context_fn": policy} if kind == "policy" else {}

    def f(h):
        h = (h @ w).sin()
        return torch.nn.functional.dropout(h, 0.5) if kind == "dropout" else h.exp()

    def whole(region, **options):
        if kind == "nested":
            return region(lambda h: region(f, h).sin(), x)
        y = region(f, x, **options)
        return y + region(f, 2 * x) if kind == "shared" else region(f, y, **options)

    def backward(run):
        y = run()
        after = torch.rand(2, device=device)
        y.backward(torch.ones_like(y))
        found = [y, w.grad, x.grad, after]
        w.grad = x.grad = None
        return found

    torch.manual_seed(1)
    due = [backward(lambda: whole(lambda g, h: g(h))) for _ in range(2)]
    torch.manual_seed(1)
    with config.patch(fallback_random=True):  # eager's random numbers, not inductor's own
        step = torch.compile(lambda: whole(checkpoint, **options), backend="inductor", fullgraph=True)
        for turn in range(2):
            note(f"expected call {turn}", due[turn])
            note(f"seen call {turn}", backward(step))
            note(f"gradients {turn}", due[turn][1:3])


def in_cuda_graphs(checkpoint: Any, note: Any, device: str, *, regions: int) -> None:
    """The first calls run and are captured, later ones are replayed, in the memory of the one before."""
    w = torch.randn(4, 4, device=device, requires_grad=True)
    x = torch.randn(2, 4, device=device, requires_grad=True)

    def whole(region):
        h = x
        for _ in range(regions):
            h = region(lambda h: (h @ w).sin().exp(), h)
        return h

    def backward(run):
        y = run()
        y.backward(torch.ones_like(y))
        found = [each.detach().clone() for each in (y, w.grad, x.grad)]
        w.grad = x.grad = None
        return found

    due = backward(lambda: whole(lambda g, h: g(h)))
    step = torch.compile(lambda: whole(checkpoint), mode="reduce-overhead", fullgraph=True)
    for turn in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        note(f"expected call {turn}", due)
        note(f"seen call {turn}", backward(step))
    note("gradients 0", due[1:])
