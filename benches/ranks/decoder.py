"""A decoder in the shape of Llama 2, whole, as one stage of a pipeline, or as one rank's share under tensor parallelism.

Rotary embeddings are left out: they have no parameters and keep nothing for backward that the projections would not keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Around = Callable[..., Any]  # calls a block's function with its input, plainly or through a checkpoint
Sum = Callable[[Tensor], object]  # adds up a tensor over ranks, in place


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder, and of the batch that a rank runs at once."""

    layers: int
    width: int
    heads: int
    groups: int  # heads of keys and values
    inner: int
    vocabulary: int
    length: int
    batch: int = 1

    @property
    def boundary(self) -> tuple[int, int, int]:
        """The shape of what goes from block to block."""
        return self.batch, self.length, self.width


TINY = Shape(layers=8, width=64, heads=4, groups=4, inner=160, vocabulary=258, length=64, batch=2)
LARGE: Mapping[str, Shape] = MappingProxyType(
    {
        "7B": Shape(layers=32, width=4096, heads=32, groups=32, inner=11008, vocabulary=32000, length=4096),
        "70B": Shape(layers=80, width=8192, heads=64, groups=8, inner=28672, vocabulary=32000, length=4096),
    }
)


class _Used(torch.autograd.Function):
    """What every rank's share of a layer uses; gradients of the shares are added up."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, add: Sum) -> Tensor:
        ctx.add = add
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.clone()
        ctx.add(gradient)
        return gradient, None


class _Added(torch.autograd.Function):
    """The sum of what the shares of a layer give."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, add: Sum) -> Tensor:
        total = value.clone()
        add(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Block(nn.Module):
    """Causal attention and a gated network, with a norm before each; with ``ranks`` above 1, one of so many shares of it."""

    def __init__(self, shape: Shape, around: Around, ranks: int = 1, add: Sum | None = None) -> None:
        super().__init__()
        self.around, self.add, self.size = around, add, shape.width // shape.heads
        self.heads, self.groups = shape.heads // ranks, shape.groups // ranks
        self.norm, self.norm_of_network = nn.RMSNorm(shape.width), nn.RMSNorm(shape.width)
        self.query, self.out = _linear(shape.width, self.heads * self.size), _linear(self.heads * self.size, shape.width)
        self.key, self.value = (_linear(shape.width, self.groups * self.size) for _ in range(2))
        self.gate, self.up = (_linear(shape.width, shape.inner // ranks) for _ in range(2))
        self.down = _linear(shape.inner // ranks, shape.width)

    def _enter(self, value: Tensor) -> Tensor:
        return _Used.apply(value, self.add) if self.add else value

    def _leave(self, value: Tensor) -> Tensor:
        return _Added.apply(value, self.add) if self.add else value

    def _split(self, value: Tensor, heads: int) -> Tensor:
        split = value.unflatten(-1, (heads, self.size)).transpose(1, 2)
        return split if heads == self.heads else split.repeat_interleave(self.heads // heads, 1)

    def inner(self, hidden: Tensor) -> Tensor:
        """What a region runs."""
        value = self._enter(self.norm(hidden))
        query, key = self._split(self.query(value), self.heads), self._split(self.key(value), self.groups)
        item = self._split(self.value(value), self.groups)
        mixed = functional.scaled_dot_product_attention(query, key, item, is_causal=True)
        hidden = hidden + self._leave(self.out(mixed.transpose(1, 2).flatten(2)))
        value = self._enter(self.norm_of_network(hidden))
        return hidden + self._leave(self.down(functional.silu(self.gate(value)) * self.up(value)))

    def forward(self, hidden: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        return self.around(self.inner, hidden)


class Decoder(nn.Module):
    """Blocks, before them the embedding if they are the ``first``, after them the head if they are the ``last``."""

    def __init__(
        self,
        shape: Shape,
        around: Around,
        *,
        layers: int | None = None,
        first: bool = True,
        last: bool = True,
        ranks: int = 1,
        add: Sum | None = None,
    ) -> None:
        super().__init__()
        count = shape.layers if layers is None else layers
        self.embedding = nn.Embedding(shape.vocabulary, shape.width) if first else None
        self.blocks = nn.ModuleList(Block(shape, around, ranks, add) for _ in range(count))
        self.norm = nn.RMSNorm(shape.width) if last else None
        self.head = _linear(shape.width, shape.vocabulary) if last else None

    def forward(self, value: Tensor) -> Tensor:
        """Tokens, or what the stage before gives, to scores, or to what the next stage gets."""
        if self.embedding is not None:
            value = self.embedding(value)
        for block in self.blocks:
            value = block(value)
        return self.head(self.norm(value)) if self.head is not None and self.norm is not None else value


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Cross entropy in float32."""
    return functional.cross_entropy(scores.flatten(0, -2).float(), targets.flatten())


def plainly(function: Callable[[Tensor], Tensor], hidden: Tensor) -> Tensor:
    """No checkpoint."""
    return function(hidden)


def _linear(before: int, after: int) -> nn.Linear:
    return nn.Linear(before, after, bias=False)
