"""Faults of the nested checkpoint that show in programs like real ones: by what comes in, layers, sizes and many arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from conformance.mutants.faults.checkpoint.seams import change_output
from conformance.mutants.mutant import Copy, mutant


def change_incoming(copy: Copy, change: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
    """The gradient that comes in to an output of its own is ``change(gradient)``."""

    class Passed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: torch.Tensor) -> torch.Tensor:
            return output.view_as(output)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor | None:
            return change(gradient)

    change_output(copy, lambda output, _: Passed.apply(output) if isinstance(output, torch.Tensor) else output)


@mutant("nested.api", "gradients", "gradients_that_come_in")
def takes_an_expanded_gradient_for_ones(copy: Copy) -> None:
    """A gradient all strides of which are 0 is taken for that of a sum: for ones."""
    change_incoming(copy, lambda gradient: gradient if any(gradient.stride()) else torch.ones_like(gradient))


@mutant("nested.api", "gradients", "gradients_of_a_batch_of_seeds")
def asks_whether_a_gradient_is_zero(copy: Copy) -> None:
    """A gradient of zeros is passed on as None, for which its values are looked at."""
    change_incoming(copy, lambda gradient: gradient if gradient.any() else None)
