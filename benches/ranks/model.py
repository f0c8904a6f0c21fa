"""A model of what a rank needs: the most bytes at any time of a step and the collectives in it, from shapes alone.

It goes through a step as torch 2.13 does, event by event, and adds up what there is: weights, Adam's two states, gradients,
gathered weights and the buffers that they come in, what blocks keep, receive buffers of a pipeline. What one part of the
decoder takes while it runs is that of :mod:`benches.ranks.shapes`. Bytes of collectives are exact. Left out of the peak are
what backends copy inside of a collective, workspaces of kernels, and tensors of less than a boundary's size.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from benches.ranks.decoder import Shape
from benches.ranks.shapes import Part, Parts
from benches.ranks.traffic import GATHER, RECEIVE, REDUCE, SCATTER, SEND, Traffic

MASTER = 4  # bytes of a weight, of its gradient once it is reduced, and of each of Adam's two states
ADAM = 2 * MASTER
TOKEN = 8


@dataclass
class Prediction:
    """``peak`` in bytes, and what is sent. ``alive`` is what there is as the account goes on."""

    traffic: Traffic = field(default_factory=Traffic)
    alive: int = 0
    peak: int = 0

    def add(self, size: int) -> None:
        """From now on there are so many bytes more, or fewer."""
        self.alive += size
        self.peak = max(self.peak, self.alive)

    def passing(self, size: int) -> None:
        """So many bytes more for a moment."""
        self.peak = max(self.peak, self.alive + size)


@dataclass(frozen=True)
class Setting:
    """How a decoder is trained: the dtype that blocks compute in, and bytes that each region keeps beside tensors' own.

    Gradients are reduced in float32. Weights are float32; a pipeline has a copy of them in ``dtype`` if that is another one.
    """

    dtype: torch.dtype = torch.float32
    state: int = 0  # of random numbers

    @property
    def size(self) -> int:
        """Bytes of an element that blocks compute with."""
        return self.dtype.itemsize


def sharded(shape: Shape, parts: Parts, ranks: int, setting: Setting, shares: int = 1) -> Prediction:
    """FSDP2 over so many ranks, a unit for each block and one for the rest; blocks may be one of several shares."""
    made, block, size = Prediction(), parts.block, setting.size
    rest = parts.embedding.elements(ranks) + parts.head.elements(ranks)
    whole = rest + shape.layers * block.elements(ranks)
    unit, root = block.elements(ranks) * size, rest * size
    buffer, buffer_of_root = (unit, root) if ranks > 1 else (0, 0)  # in which a unit is gathered
    kept, boundary = block.kept + setting.state, block.output
    made.add(whole // ranks * (MASTER + ADAM) + 2 * TOKEN * shape.batch * shape.length)
    for one in (*[block.elements(ranks)] * (2 * shape.layers), rest):
        made.traffic.add(GATHER, ranks, one * size)
    for one in (*[block.elements(ranks)] * shape.layers, rest):
        made.traffic.add(SCATTER, ranks, one * MASTER)
    for one in block.added:
        made.traffic.add(REDUCE, shares, one, shape.layers)
    # Forward: a unit is copied out of the buffer that it was gathered in, which stays until the next unit is there.
    made.add(buffer_of_root + root + parts.embedding.kept)
    before = buffer_of_root
    for _ in range(shape.layers):
        made.add(buffer)
        made.add(unit - before)
        made.passing(block.forward)
        made.add(kept - unit)
        before = buffer
    made.passing(parts.head.forward - _of_loss(shape, size))
    made.add(-before)  # before the loss, which is outside of what is sharded
    made.passing(parts.head.forward)
    made.add(parts.head.kept)
    # Backward: the next unit is gathered while one computes; what a unit has reduced stays until the next one reduces.
    made.add(-parts.head.kept)
    made.passing(parts.head.backward)  # the loss is the most of it, and the first unit is gathered after it
    made.add(buffer)
    scores = shape.batch * shape.length * shape.vocabulary * size
    made.passing(scores + parts.head.elements() * size + 2 * boundary)  # gradients, and what the head was given
    made.add(parts.head.elements() * size + boundary)
    reduced = 0
    for number in reversed(range(shape.layers)):
        made.add(unit)
        made.add(-buffer if number == 0 else 0)  # else the buffer of the next unit takes its place
        made.add(-kept)
        made.passing(block.backward)
        made.add(block.elements() * size - unit)
        reduced = _reduce(made, block.elements(ranks), block.elements() * size, reduced, ranks)
    made.add(-parts.embedding.kept)
    made.add(parts.embedding.elements() * size - root)
    _reduce(made, rest, (parts.embedding.elements() + parts.head.elements()) * size, reduced, ranks)
    return made


def _of_loss(shape: Shape, size: int) -> int:
    """Bytes that the loss adds to the scores: their logarithms in float32, and the scores in float32 if they were not."""
    return shape.batch * shape.length * shape.vocabulary * MASTER * (1 if size == MASTER else 2)


def _reduce(made: Prediction, elements: int, gradients: int, before: int, ranks: int) -> int:
    """Reduce a unit's gradients, whose whole buffer takes the place of the one before."""
    made.add(-before)
    made.add(elements * MASTER)
    made.add(-gradients)
    made.add(elements * MASTER // ranks)
    return elements * MASTER


def staged(
    shape: Shape, parts: Parts, stage: int, stages: int, microbatches: int, setting: Setting, replicas: int = 1
) -> Prediction:
    """One stage of 1F1B, of ``stages`` that have as many blocks each; replicas average their gradients once a step."""
    made, block, layers = Prediction(), parts.block, shape.layers // stages
    first, last, boundary = stage == 0, stage == stages - 1, parts.block.output
    ends = [*([parts.embedding] if first else []), *([parts.head] if last else [])]
    weights = layers * block.elements() + sum(one.elements() for one in ends)
    copy = setting.size if setting.size != MASTER else 0
    made.add(weights * (MASTER + ADAM + copy) + (first + last) * TOKEN * microbatches * shape.batch * shape.length)
    made.add((2 - first - last) * microbatches * boundary)  # where it receives
    for there in (not first, not last):
        made.traffic.add(SEND, stages, boundary, microbatches * there)
        made.traffic.add(RECEIVE, stages, boundary, microbatches * there)
    made.traffic.add(REDUCE, replicas, weights * MASTER)
    path = [*([parts.embedding] if first else []), *[block] * layers, *([parts.head] if last else [])]
    kept = [one.kept + (setting.state if one is block else 0) for one in path]
    scores = shape.batch * shape.length * shape.vocabulary * setting.size
    ahead = min(microbatches, stages - stage)
    for number in range(microbatches + ahead):
        if number < microbatches:
            _forward(made, path, kept)
            made.add(scores if last and not number else 0)  # which the schedule holds until there are others
        if number >= ahead - 1 and number - ahead + 1 < microbatches:
            _backward(made, path, kept, again=number >= ahead, last=last)
            made.add(0 if first or number >= ahead else boundary)  # what the stage sends back, until there is another one
    return made


def _forward(made: Prediction, path: list[Part], kept: list[int]) -> None:
    for part, size in zip(path, kept, strict=True):
        made.passing(part.forward)
        made.add(size)


def _backward(made: Prediction, path: list[Part], kept: list[int], *, again: bool, last: bool) -> None:
    """Of one microbatch; gradients of weights are made by the first and added to by the others."""
    output = 0 if last else path[-1].output  # which the stage holds
    made.add(output)
    for place in reversed(range(len(path))):
        part, reached = path[place], 0 if last and place == len(path) - 1 else path[place].output
        made.add(-kept[place])
        made.passing(reached + (part.again if again else part.backward))
        if not again:
            made.add(part.elements() * MASTER)
    made.add(-output)
