"""A transformer layer with parts of it recomputed: its gradients, and how long its forward and its backward take."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from benches.papers.models.transformer_layer import Shape, Technique, layer, split, weights

WARM = 3  # rounds that are not counted


@dataclass(frozen=True)
class Lap:
    """Seconds of one step."""

    forward: float
    backward: float

    @property
    def combined(self) -> float:
        return self.forward + self.backward


class Layer:
    """A layer on one rank, with random weights that are the same for every technique."""

    def __init__(self, shape: Shape, technique: Technique, *, dtype: torch.dtype, device: str) -> None:
        self.shape, self.technique = shape, technique
        self.ranks = split(weights(shape, dtype=dtype, device=device), technique.ranks)
        made = torch.Generator().manual_seed(1)
        value, cotangent = (torch.randn(shape.s, shape.b, shape.h, generator=made) for _ in range(2))
        self.input, self.cotangent = value.to(device, dtype).requires_grad_(), cotangent.to(device, dtype)

    @property
    def leaves(self) -> list[Tensor]:
        """What gets a gradient."""
        return [self.input, *(tensor for rank in self.ranks for tensor in rank.tensors())]

    def step(self, tell: Callable[[], float]) -> Lap:
        """Forward and backward; gradients of before are gone."""
        for leaf in self.leaves:
            leaf.grad = None
        started = tell()
        (output,) = layer([self.input], self.ranks, self.shape, self.technique)
        between = tell()
        output.backward(self.cotangent)
        return Lap(between - started, tell() - between)

    def gradients(self) -> list[Tensor]:
        """What a step gives each leaf, with random numbers that are the same each time.

        Raises RuntimeError where one is missing or nothing but zeros.
        """
        torch.manual_seed(2)
        self.step(lambda: 0.0)
        found = [leaf.grad for leaf in self.leaves if leaf.grad is not None and leaf.grad.any()]
        if len(found) < len(self.leaves):
            raise RuntimeError(
                f"{len(self.leaves) - len(found)} of {len(self.leaves)} gradients are missing or nothing but zeros"
            )
        return found


def timed(layers: Mapping[str, Layer], rounds: int, clock: Callable[[], float]) -> dict[str, list[Lap]]:
    """The laps of each layer, which take turns in an order that is drawn anew for each round."""
    order, shuffle = list(layers), random.Random(0).shuffle
    laps: dict[str, list[Lap]] = {name: [] for name in order}
    for number in range(WARM + rounds):
        shuffle(order)
        for name in order:
            lap = layers[name].step(clock)
            if number >= WARM:
                laps[name].append(lap)
    return laps
