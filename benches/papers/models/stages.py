"""A chain of equal stages that each save more than they give on, run for real as a plan says: times and units counted.

A stage gives on one unit and saves ``SAVED`` units, its output among them, besides its input. Its forward costs 1, its
backward 2: what ran is counted, not timed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from benches.papers.meters.live import Live
from impls.schedules import Plan, Stage, checkpoint_sequential, kept

SAVED, FORWARD, BACKWARD = 3, 1, 2
UNIT = 64
# A stage in the paper's model, and one that makes all that it may save even if nothing is kept.
IDEAL = Stage(forward=FORWARD, backward=BACKWARD, output=1, saved=SAVED, gradient=1)
REAL = Stage(forward=FORWARD, backward=BACKWARD, output=1, saved=SAVED, gradient=1, passing_extra=SAVED - 1, backward_extra=1)


@dataclass(frozen=True)
class Executed:
    """The time of all that ran, and the most units that were alive."""

    time: int
    peak: int


def execute(plan: Plan, count: int) -> Executed:
    """Run a plan of ``count`` stages. Raises RuntimeError when the gradient is not plain autograd's to the last bit."""
    done, gradient = _run(plan, count)
    _, expected = _run(kept(0, count), count)
    if not torch.equal(gradient, expected) or not gradient.all():
        raise RuntimeError(f"the gradient is {gradient}, plain autograd's is {expected}")
    return done


def _run(plan: Plan, count: int) -> tuple[Executed, torch.Tensor]:
    ran: list[int] = []
    start = torch.linspace(0.5, 1, UNIT // 8, dtype=torch.float64).requires_grad_()
    with Live() as live:
        end = End.apply(checkpoint_sequential([lambda value: _Work.apply(value, ran)] * count, plan, start))
        end.backward()
    assert start.grad is not None
    scalars = 3 * start.element_size()  # what the chain ends in, its gradient, and a sum in backward
    if not 0 <= live.peak % UNIT <= scalars:
        raise RuntimeError(f"{live.peak} bytes were alive at the peak; a unit has {UNIT}")
    return Executed(sum(ran), live.peak // UNIT), start.grad


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, ran: list[int]) -> torch.Tensor:
        ran.append(FORWARD)
        output = value.sin()
        ctx.ran = ran
        ctx.save_for_backward(value, output, *(output.clone() for _ in range(SAVED - 1)))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        value, output, *others = ctx.saved_tensors
        ctx.ran.append(BACKWARD)
        gradient = value.cos()
        gradient *= gradients[0]
        for other in others:  # what was saved matters, so that a wrong value shows
            gradient *= other.sum().item() / output.sum().item()
        return gradient, None


class End(torch.autograd.Function):
    """Ends the chain without holding its output; the loss gradient is made when backward starts."""

    @staticmethod
    def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
        ctx.shape, ctx.dtype = output.shape, output.dtype
        return output.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> torch.Tensor:
        return torch.ones(ctx.shape, dtype=ctx.dtype)
