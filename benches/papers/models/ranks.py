"""Tensor parallel ranks in one process: what t ranks hold is a list of t tensors, and collectives turn lists into lists.

Each has the gradient that Megatron's communication has: of a sum that all get, every rank's own share passes on as it
is; of a value that all use, the gradients are summed; gathering along the sequence and summing slices undo each other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

Ranks = list[torch.Tensor]


def _sum(values: tuple[torch.Tensor, ...]) -> torch.Tensor:
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


class _Shared(torch.autograd.Function):
    """Every rank uses its copy of one value; the gradients are summed."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(value.view_as(value) for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = _sum(gradients)
        return (total,) * len(gradients)


class _Summed(torch.autograd.Function):
    """Every rank gets the sum of all; each gradient passes on as it is."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_sum(values).clone() for _ in values)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients


class _Scattered(torch.autograd.Function):
    """Every rank gets its slice of the sum of all along the sequence; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(slice.clone() for slice in _sum(values).chunk(len(values)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (torch.cat(gradients),) * len(gradients)


class _GatheredLinear(torch.autograd.Function):
    """Linear maps of the sequence that is gathered from all ranks. Slices are saved, and gathered again for backward."""

    @staticmethod
    def forward(ctx: Any, ranks: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.ranks = ranks
        ctx.save_for_backward(*tensors[: 2 * ranks])
        whole = torch.cat(tensors[:ranks])
        maps = zip(tensors[ranks : 2 * ranks], tensors[2 * ranks :], strict=True)
        return tuple(functional.linear(whole, weight, bias) for weight, bias in maps)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slices, weights = ctx.saved_tensors[: ctx.ranks], ctx.saved_tensors[ctx.ranks :]
        whole = torch.cat(slices).flatten(0, -2)
        inputs = _sum(tuple(gradient @ weight for gradient, weight in zip(gradients, weights, strict=True)))
        flat = [gradient.flatten(0, -2) for gradient in gradients]
        return None, *inputs.chunk(ctx.ranks), *(one.t() @ whole for one in flat), *(one.sum(0) for one in flat)


def shared(values: Ranks) -> Ranks:
    """Before a map whose weights are split by output."""
    return values if len(values) == 1 else list(_Shared.apply(*values))


def summed(values: Ranks, *, scatter: bool) -> Ranks:
    """After a map whose weights are split by input; with ``scatter`` each rank keeps its part of the sequence."""
    if len(values) == 1:
        return values
    return list((_Scattered if scatter else _Summed).apply(*values))


def gathered_linear(slices: Ranks, weights: Ranks, biases: Ranks) -> Ranks:
    """Each rank's map of the whole sequence, of which each has a part."""
    if len(slices) == 1:
        return [functional.linear(slices[0], weights[0], biases[0])]
    return list(_GatheredLinear.apply(len(slices), *slices, *weights, *biases))
