"""The peak of a step through ``nested`` or ``native``, predicted and measured in bytes, by two meters.

The chain's layers save their input and nothing else. Its peak follows from the plan alone: ``impls.schedules.interpret``
takes it step by step and runs nothing, and for binary nesting there is the closed form log2 n + 4.

For a model whose blocks are regions, the prediction comes from plain runs: each block runs alone, without a checkpoint, and a
meter says the most bytes that its forward and backward add. The boundaries are added to these: what blocks before it gave to
the regions after them, the gradient that reaches it, and the model's output, which the caller holds. The block with the largest
sum is the peak. Each meter is predicted from its own readings: storages that operators make, and what torch's allocator gives
out, workspaces of kernels included. The caller's input and gradients of parameters, which are there before, do not count; the
chain's input does, as in the closed form. Random number states, which both keep for each region, do not either: they are
switched off.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.nn import functional

from benches.compare import meters
from benches.compare.contenders import PLAIN, checkpointing, each_block, no_region
from benches.compare.measurement import gradients, nothing, step_of
from benches.compare.meters import Step
from benches.models.blocks import Block
from benches.models.workloads import Workload, workload
from benches.overhead.chain import Checkpoint
from benches.papers.nested90105 import halves
from impls.schedules import Plan, binary, interpret, uniform, unit_chain
from impls.sequential import sequential as checkpoint_sequential

SEQUENTIAL = {16: 4, 64: 8}  # layers, and segments of which all but the last are regions
NESTED = 4, 16, 64
MODELS = (("attention", "S"), ("attention", "M"), ("resnet", "S"), ("resnet", "M"))
ELEMENTS = 128
METERS: Mapping[str, Callable[[Step], int]] = {
    "storages": lambda step: meters.ledger(step).peak,
    "allocator": lambda step: meters.allocated(step, "cpu").peak,
}


@dataclass(frozen=True)
class Peak:
    """The most bytes of a step, as predicted and as measured; ``limit`` is how far the ratio of the two may be from 1."""

    checkpoint: str
    name: str
    meter: str
    predicted: int
    measured: int
    limit: float

    @property
    def ratio(self) -> float:
        return self.measured / self.predicted

    @property
    def holds(self) -> bool:
        return abs(self.measured - self.predicted) <= self.limit * self.predicted


@dataclass(frozen=True)
class Measured:
    """A checkpoint of ours, without states of random numbers."""

    name: str
    full: Checkpoint

    def __call__(self, function: Callable[..., Any], *args: Any) -> Any:
        return self.full(function, *args, preserve_rng_state=False)


def peaks(checkpoints: Mapping[str, Checkpoint]) -> Iterator[Peak]:
    """For each of our checkpoints the chain, then the models. Raises ValueError where gradients are not plain's."""
    for checkpoint in (Measured(name, one) for name, one in checkpoints.items()):
        for layers, segments in SEQUENTIAL.items():
            yield from sequential(checkpoint, layers, segments)
        for layers in NESTED:
            yield from binary_nesting(checkpoint, layers)
        for name, size in MODELS:
            yield from blocks(checkpoint, workload(name, size))


def sequential(checkpoint: Measured, layers: int, segments: int) -> Iterator[Peak]:
    """A chain in equal segments: predicted by its plan."""

    def forward(value: Tensor) -> Tensor:
        output: Tensor = checkpoint_sequential(checkpoint.full, [functional.softplus] * layers, segments, value,
                                               preserve_rng_state=False)  # fmt: skip
        return output

    name = f"chain of {layers}, sequential, {segments} segments"
    yield from _chain(checkpoint, name, layers, _held_too(uniform(layers, segments), layers), forward)


def binary_nesting(checkpoint: Measured, layers: int) -> Iterator[Peak]:
    """A chain cut in two down to single layers: log2 n + 4 units. Raises ValueError when the plan predicts anything else."""
    units, of_plan = layers.bit_length() + 3, _held_too(binary(layers), layers)
    if units != of_plan:
        raise ValueError(f"log2 n + 4 is {units} for {layers} layers, and the plan takes {of_plan} units: one of them is wrong")
    scheme = halves(checkpoint)
    forward = functools.partial(scheme, [functional.softplus] * layers)
    yield from _chain(checkpoint, f"chain of {layers}, binary nesting, log2 n + 4 = {units} units", layers, units, forward)


def _held_too(plan: Plan, layers: int) -> int:
    """Units at the peak of a plan, with the chain's input and its output, which the caller holds."""
    return interpret(plan, unit_chain(layers)).peak + 2


def _chain(checkpoint: Measured, name: str, layers: int, units: int, forward: Callable[[Tensor], Tensor]) -> Iterator[Peak]:
    start = torch.linspace(-1, 1, ELEMENTS, dtype=torch.float64).requires_grad_()

    def through(run: Callable[[Tensor], Tensor]) -> Step:
        def step(over: Callable[[], object]) -> None:
            output = run(start)
            over()
            output.backward(torch.ones_like(output))

        return step

    def plain(value: Tensor) -> Tensor:
        for _ in range(layers):
            value = functional.softplus(value)
        return value

    found: list[Tensor | None] = []
    for run in (plain, forward):
        start.grad = None
        through(run)(nothing)
        found.append(start.grad)
    _require_equal(checkpoint, name, found[:1], found[1:])
    for meter, peak in METERS.items():
        start.grad = None
        yield Peak(checkpoint.name, name, meter, units * start.nbytes, peak(through(forward)) + start.nbytes, 0.0)


def blocks(checkpoint: Measured, model: Workload) -> Iterator[Peak]:
    """A model of which each block is a region: predicted from what each block takes plain and alone."""
    contender = checkpointing(checkpoint.name, "ours", checkpoint)
    step = step_of(model, contender.prepare(model.blocks, each_block(model), model.input))
    plain = step_of(model, PLAIN.prepare(model.blocks, no_region(model), model.input))
    name = f"{model.name}, size {model.size}, {len(model.blocks)} blocks"
    _require_equal(checkpoint, name, gradients(model, plain), gradients(model, step))
    for meter, peak in METERS.items():
        yield Peak(checkpoint.name, name, meter, predicted(model, peak), peak(step), 0.01)


def predicted(model: Workload, peak: Callable[[Step], int]) -> int:
    """The peak of a model whose blocks are regions, from plain runs of each block alone."""
    values = [model.input.detach()]
    with torch.no_grad():
        for block in model.blocks:
            values.append(block(values[-1]))
    pairs = zip(model.blocks, itertools.pairwise(values), strict=True)
    needs = [_alone(block, value, output, peak) for block, (value, output) in pairs]
    return summed([value.nbytes for value in values[1:]], needs)


def summed(outputs: Sequence[int], needs: Sequence[int]) -> int:
    """The largest sum of what a block needs, the outputs before it, the gradient that reaches it, and the last output.

    The gradient of the last output is the caller's and was there before.
    """
    last = len(needs) - 1
    reached = [outputs[index] if index < last else 0 for index in range(len(needs))]
    return outputs[-1] + max(sum(outputs[:index]) + reached[index] + need for index, need in enumerate(needs))


def _alone(block: Block, value: Tensor, output: Tensor, peak: Callable[[Step], int]) -> int:
    """The most bytes that forward and backward of a block add, when nobody holds its output."""
    leaf, gradient = value.clone().requires_grad_(), torch.ones_like(output)

    def step(over: Callable[[], object]) -> None:
        result = block(leaf)
        edge = get_gradient_edge(result)
        del result
        over()
        torch.autograd.backward(edge, gradient)

    step(nothing)  # what is made once only, gradients of parameters among it
    leaf.grad = None
    return peak(step)


def _require_equal(checkpoint: Measured, name: str, expected: Sequence[Tensor | None], found: Sequence[Tensor | None]) -> None:
    for one, other in zip(expected, found, strict=True):
        if one is None or other is None or not one.any() or not torch.equal(one, other):
            raise ValueError(f"{name}: gradients through {checkpoint.name} are not plain's, or nothing but zeros; "
                             "its bytes say nothing")  # fmt: skip
