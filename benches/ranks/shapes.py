"""What the parts of a decoder take, from their shapes alone: each is run by itself on fake tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import get_gradient_edge

from benches.papers.meters.live import Live
from benches.ranks.decoder import Around, Decoder, Shape, loss


@dataclass(frozen=True)
class Part:
    """Bytes of a part beside its weights, its input and the gradient of its output, which are there before.

    ``kept`` are there when forward is over, the output among them; ``forward`` is the most that there were meanwhile.
    ``backward`` is the most in backward, if the output is let go of before, with what a region recomputes and gradients of the
    weights as they are made; ``again`` is the same where these are added to others. ``added`` are the sizes of tensors
    that the part has added up over the ranks that share it.
    """

    weights: tuple[torch.Size, ...]
    output: int
    kept: int
    forward: int
    backward: int
    again: int
    added: tuple[int, ...]

    def elements(self, ranks: int = 1) -> int:
        """Elements of all weights, the first dimension of each padded to a multiple of the number of ranks."""
        return sum(-(-size[0] // ranks) * ranks * size[1:].numel() for size in self.weights)


@dataclass(frozen=True)
class Parts:
    """The parts of a decoder; its blocks are all alike."""

    embedding: Part
    block: Part
    head: Part


def parts(shape: Shape, around: Around, dtype: torch.dtype = torch.float32, shares: int = 1) -> Parts:
    """The parts of a decoder whose blocks are called through ``around``, each block one of ``shares`` shares."""
    added: list[int] = []
    add = (lambda one: added.append(one.nbytes)) if shares > 1 else None
    with FakeTensorMode(), _default(dtype):
        model = Decoder(shape, around, layers=1, ranks=shares, add=add)
        hidden = torch.empty(shape.boundary, requires_grad=True)
        tokens = torch.zeros(shape.boundary[:2], dtype=torch.int64)
        assert model.embedding is not None
        head = _Head(model, tokens)
        return Parts(*(_alone(*one, added) for one in ((model.embedding, tokens), (model.blocks[0], hidden), (head, hidden))))


class _Head(nn.Module):
    """The last norm, the scores and their loss."""

    def __init__(self, model: Decoder, targets: Tensor) -> None:
        super().__init__()
        self.norm, self.head, self.targets = model.norm, model.head, targets

    def forward(self, hidden: Tensor) -> Tensor:
        assert self.norm is not None
        assert self.head is not None
        return loss(self.head(self.norm(hidden)), self.targets)


@contextmanager
def _default(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _alone(module: nn.Module, value: Tensor, added: list[int]) -> Part:
    runs = [_run(module, value, added) for _ in range(2)]  # in the second, gradients are there
    (output, kept, forward, backward, sums), again = runs[0], runs[1][3]
    return Part(tuple(one.shape for one in module.parameters()), output, kept, forward, backward, again, sums)


def _run(module: nn.Module, value: Tensor, added: list[int]) -> tuple[int, int, int, int, tuple[int, ...]]:
    value.grad = None
    added.clear()
    with Live() as live:
        result = module(value)
        output, kept, forward = result.untyped_storage().nbytes(), live.alive, live.peak
        gradient, edge = torch.empty_like(result), get_gradient_edge(result)
        del result
        before, live.peak = gradient.nbytes, live.alive
        torch.autograd.backward(edge, gradient)
        backward = live.peak - before
    return output, kept, forward, backward, tuple(added)
