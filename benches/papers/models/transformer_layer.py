"""A transformer layer as in Megatron, on t tensor parallel ranks in one process, with parts of it checkpointed.

Layer norm, attention, dropout, sum; layer norm, four times wider GELU network, dropout, sum. Activations are (sequence,
batch, hidden). Dropout is ``native_dropout``, whose mask has one byte an element on every device; the scores are not masked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import astuple, dataclass

import torch
from torch.nn import functional

from benches.papers.models.ranks import Ranks, gathered_linear, shared, summed
from impls import nested


@dataclass(frozen=True)
class Shape:
    """Sequence length s, micro batch b, hidden size h, attention heads a."""

    s: int
    b: int
    h: int
    a: int


@dataclass(frozen=True)
class Technique:
    """How the layer runs. ``recompute`` is "none", "selective" (the attention core) or "full" (the layer)."""

    ranks: int = 1
    sequence: bool = False
    recompute: str = "none"
    early_stop: bool = True
    dropout: float = 0.1


@dataclass(frozen=True)
class Weights:
    """One rank's: norms as (scale, shift) pairs, maps as (weight, bias) pairs; query, key and value are one map."""

    norm1: Ranks
    qkv: Ranks
    project: Ranks
    norm2: Ranks
    up: Ranks
    down: Ranks

    def tensors(self) -> Ranks:
        """All of them."""
        return [tensor for pair in (self.norm1, self.qkv, self.project, self.norm2, self.up, self.down) for tensor in pair]


def weights(shape: Shape, *, dtype: torch.dtype, device: str) -> Weights:
    """Random weights of a whole layer, seeded."""
    generator = torch.Generator().manual_seed(0)

    def pair(out: int, *inner: int) -> Ranks:
        if device == "meta":
            return [torch.empty(out, *inner, dtype=dtype, device=device), torch.empty(out, dtype=dtype, device=device)]
        both = torch.randn(out, *inner, generator=generator), torch.randn(out, generator=generator)
        return [(one / (shape.h**0.5 if inner else 1)).to(device, dtype) for one in both]

    h = shape.h
    made = Weights(pair(h), pair(3 * h, h), pair(h, h), pair(h), pair(4 * h, h), pair(h, 4 * h))
    for tensor in made.tensors():
        tensor.requires_grad_()
    return made


def split(whole: Weights, ranks: int) -> list[Weights]:
    """A whole layer's weights cut for ``ranks`` ranks: by heads, and by the inner width of the network."""

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().clone().requires_grad_()

    def rank(index: int) -> Weights:
        def part(tensor: torch.Tensor, dim: int = 0) -> torch.Tensor:
            return leaf(tensor.chunk(ranks, dim)[index])

        heads = [leaf(torch.cat([third.chunk(ranks)[index] for third in one.chunk(3)])) for one in whole.qkv]
        return Weights(
            [leaf(one) for one in whole.norm1],
            heads,
            [part(whole.project[0], 1), leaf(whole.project[1])],
            [leaf(one) for one in whole.norm2],
            [part(one) for one in whole.up],
            [part(whole.down[0], 1), leaf(whole.down[1])],
        )

    return [rank(index) for index in range(ranks)]


def layer(slices: Ranks, ranks: list[Weights], shape: Shape, technique: Technique) -> Ranks:
    """The layer's outputs, one a rank. ``slices`` are the inputs: parts of the sequence, or the whole sequence for each."""
    if technique.recompute != "full":
        return _network(_attention(slices, ranks, shape, technique), ranks, technique)

    def whole(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(_network(_attention(list(values), ranks, shape, technique), ranks, technique))

    return list(nested.checkpoint(whole, *slices, early_stop=technique.early_stop))


def _attention(values: Ranks, ranks: list[Weights], shape: Shape, technique: Technique) -> Ranks:
    core: Callable[..., torch.Tensor] = functools.partial(_core, heads=shape.a // technique.ranks, dropout=technique.dropout)
    if technique.recompute == "selective":
        core = functools.partial(nested.checkpoint, core, early_stop=technique.early_stop)
    mapped = _enter(values, [w.norm1 for w in ranks], [w.qkv for w in ranks], technique)
    contexts = [core(*one.chunk(3, dim=-1)) for one in mapped]
    return _leave(values, contexts, [w.project for w in ranks], technique)


def _network(values: Ranks, ranks: list[Weights], technique: Technique) -> Ranks:
    mapped = _enter(values, [w.norm2 for w in ranks], [w.up for w in ranks], technique)
    return _leave(values, [functional.gelu(one) for one in mapped], [w.down for w in ranks], technique)


def _enter(values: Ranks, norms: list[Ranks], maps: list[Ranks], technique: Technique) -> Ranks:
    pairs = zip(values, norms, strict=True)
    normed = [functional.layer_norm(value, value.shape[-1:], scale, shift) for value, (scale, shift) in pairs]
    if technique.sequence:
        return gathered_linear(normed, [weight for weight, _ in maps], [bias for _, bias in maps])
    return [functional.linear(value, *one) for value, one in zip(shared(normed), maps, strict=True)]


def _leave(values: Ranks, inner: Ranks, maps: list[Ranks], technique: Technique) -> Ranks:
    parts = [functional.linear(value, weight) for value, (weight, _) in zip(inner, maps, strict=True)]
    outputs = [one + bias for one, (_, bias) in zip(summed(parts, scatter=technique.sequence), maps, strict=True)]
    return [value + _dropout(output, technique.dropout) for value, output in zip(values, outputs, strict=True)]


def _core(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, heads: int, dropout: float) -> torch.Tensor:
    """Attention of (s, b, width) tensors: what selective recomputation runs again."""
    s, b, width = query.shape
    q, k, v = (one.reshape(s, b, heads, -1).permute(1, 2, 0, 3).reshape(b * heads, s, -1) for one in (query, key, value))
    scores = torch.bmm(q, k.transpose(1, 2)) * (width // heads) ** -0.5
    context = torch.bmm(_dropout(torch.softmax(scores, dim=-1), dropout), v)
    return context.reshape(b, heads, s, -1).permute(2, 0, 1, 3).reshape(s, b, width)


def _dropout(value: torch.Tensor, probability: float) -> torch.Tensor:
    return torch.native_dropout(value, probability, train=True)[0] if probability else value


def paper_bytes(shape: Shape, technique: Technique) -> int:
    """The paper's bytes of activations for one rank, at two bytes an element and one byte an element of a mask."""
    s, b, h, a = astuple(shape)
    t, sbh, core = technique.ranks, s * b * h, 5 * a * s * s * b
    if technique.recompute == "full":
        return 2 * sbh // (t if technique.sequence else 1)
    outside = 34 * sbh // t if technique.sequence else 10 * sbh + 24 * sbh // t
    return outside + (core // t if technique.recompute == "none" else 0)
