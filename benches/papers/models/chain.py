"""A chain of equal layers, run for real: what a checkpointing scheme costs on it, in calls, kernels and units of memory.

Each layer is one forward kernel that saves exactly its input and one backward kernel that reads it. One unit is one
layer's output. A scheme is any function of the layers and the input; its gradient must be plain autograd's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from benches.papers.meters.live import Live

Layer = Callable[[torch.Tensor], torch.Tensor]
Scheme = Callable[[Sequence[Layer], torch.Tensor], torch.Tensor]
WIDTH = 8


@dataclass(frozen=True)
class Cost:
    """What one forward and backward took; ``alive`` is after forward. Units that operators made: the input is no part."""

    calls: int
    kernels: int
    alive: int
    peak: int


def cost(scheme: Scheme, n: int) -> Cost:
    """Run ``scheme`` on a chain of ``n`` layers. Raises RuntimeError when its gradient is not plain autograd's."""
    called = 0

    def layer(value: torch.Tensor) -> torch.Tensor:
        nonlocal called
        called += 1
        return functional.softplus(value)  # its derivative is near enough to 1 that long chains keep a gradient

    expected = _gradient(plain, [layer] * n, Live())
    called, live = 0, Live()
    alive: list[int] = []
    gradient = _gradient(scheme, [layer] * n, live, alive)
    if not torch.equal(gradient, expected) or not gradient.all():
        raise RuntimeError(f"the gradient of a chain of {n} layers is {gradient}, plain autograd's is {expected}")
    unit = gradient.untyped_storage().nbytes()
    if alive[0] % unit or live.peak % unit:
        raise RuntimeError(f"{alive[0]} bytes were alive and {live.peak} at the peak; a unit has {unit}")
    return Cost(called, live.kernels["softplus"], alive[0] // unit, live.peak // unit)


def _gradient(scheme: Scheme, layers: Sequence[Layer], live: Live, alive: list[int] | None = None) -> torch.Tensor:
    start = torch.linspace(-1, 1, WIDTH, dtype=torch.float64).requires_grad_()
    with live:
        output = scheme(layers, start)
        if alive is not None:
            alive.append(live.alive)
        output.backward(torch.ones_like(output))
    assert start.grad is not None
    return start.grad


def plain(layers: Sequence[Layer], value: torch.Tensor) -> torch.Tensor:
    """No checkpointing: one layer after the other."""
    for layer in layers:
        value = layer(value)
    return value
