"""FairScale's OffloadModel: how it cuts a model, and what one step costs in forwards, memory and bytes that are moved."""

from __future__ import annotations

import functools
import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from benches.papers.meters.live import Live
from benches.papers.paper import Claim, Found, Paper, Said, derived, difference, exact
from conformance.meters.parameter_copies import Residents
from conformance.simulated_device.device import Moves, second
from impls.offload import OffloadModel, slices

WIDTH, LAYERS, ROWS = 8, 4, 16  # layers of one shape, as many slices
HOST = "cpu"
DOCUMENT, FUNCTION = "docs/source/deep_dive/offload.rst", "OffloadFunction"


def stack(widths: tuple[int, ...]) -> nn.Sequential:
    """Linear layers of these widths, seeded."""
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(before, after) for before, after in pairwise(widths)))


@dataclass(frozen=True)
class Step:
    """One step: calls of each layer, bytes moved in and out, and the bytes of each move to the host in forward."""

    calls: tuple[int, ...]
    moved: Counter[str]
    boundaries: tuple[int, ...]


def step(widths: tuple[int, ...], *, num_slices: int, checkpoint: bool) -> Step:
    """Train one step on the simulated device. Raises RuntimeError when a gradient is not the plain model's, bit for bit."""
    device, plain = second(HOST), stack(widths)
    model = OffloadModel(stack(widths), device, num_slices=num_slices, checkpoint_activation=checkpoint)
    calls: Counter[str] = Counter()
    for name, layer in model.named_children():
        layer.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
    batch = torch.randn(ROWS, widths[0], generator=torch.Generator().manual_seed(1))
    plain(batch).square().sum().backward()
    near = batch.to(device).requires_grad_()  # so that backward needs every slice
    with Moves() as forward:
        output = model(near)
    with Moves() as backward:
        output.square().sum().backward()
    for name, parameter in model.named_parameters():
        expected = plain.get_parameter(name).grad
        if expected is None or parameter.grad is None or not torch.equal(parameter.grad, expected) or not expected.any():
            raise RuntimeError(f"the gradient of {name} is not the plain model's")
    ways = {f"{HOST}→{device}": "in", f"{device}→{HOST}": "out"}
    moves = [(ways[move.kind], move.bytes) for move in (*forward.seen, *backward.seen)]
    moved = Counter({way: sum(size for one, size in moves if one == way) for way in ways.values()})
    return Step(tuple(calls.values()), moved, tuple(move.bytes for move in forward.seen if ways[move.kind] == "out"))


@functools.cache
def steps() -> tuple[Step, Step, Step]:
    """Three steps in a process of their own: uneven slices, then even ones without and with activation checkpointing.

    torch must know the simulated device before its first backward, and never forgets it.
    """
    even = (WIDTH,) * (LAYERS + 1)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = [pool.submit(step, (64, 4, 4, 4, 8), num_slices=3, checkpoint=True)]
        asked += [pool.submit(step, even, num_slices=LAYERS, checkpoint=checkpoint) for checkpoint in (False, True)]
        uneven, plain, checkpointed = (one.result() for one in asked)
    return uneven, plain, checkpointed


def kept() -> tuple[int, ...]:
    """Bytes of each storage that a checkpointed forward leaves alive, its output among them, on one device."""
    model = OffloadModel(stack((WIDTH,) * (LAYERS + 1)), HOST, num_slices=LAYERS, checkpoint_activation=True)
    batch = torch.randn(ROWS, WIDTH)
    with Live() as live:
        output = model(batch)
        sizes = tuple(size for size in live.sizes.values() if size)
    del output
    return sizes


def resident() -> Found:
    """The most slices of which copies are alive at once while a layer runs, in forward and backward."""
    model = OffloadModel(stack((WIDTH,) * (LAYERS + 1)), HOST, num_slices=LAYERS, checkpoint_activation=True)
    residents = Residents()
    with residents:
        residents.at("leaves", tuple(model.parameters()))
        residents.at("cost step", None)
        model(torch.randn(ROWS, WIDTH)).square().sum().backward()
        residents.at("cost over", None)
    present = [{index // 2 for index in moment.copies} for moment in residents.moments]  # a layer has two parameters
    if set().union(*present) != set(range(LAYERS)):
        raise RuntimeError(f"copies of {set().union(*present)} were seen, expected of {LAYERS} slices")
    return Found(max(map(len, present)), f"after the step there are {len(present[-1])}")


def claims() -> Iterator[Claim]:
    """The greedy cut, forwards, boundary activations and traffic, and what the original does in another way."""
    yield exact(
        "Linear 64-4, 4-4, 4-4, 4-8 in 3 slices: parameters by layer",
        says=Said("the next shard once this one is not empty and would be over total // shards, if one is left", "_split"),
        expected=([260], [20, 20, 40], []),
        measure=_cut,
    )
    yield derived(
        "executed: bytes of the slices' inputs, moved to the host in forward",
        says=Said("activations at the boundaries are stored on the CPU", DOCUMENT),
        expected=(4 * ROWS * 64, 4 * ROWS * 4),
        measure=lambda: steps()[0].boundaries,
        note="of the first layer and of the second; the third slice is empty",
    )
    yield exact(
        "activation checkpointing: forwards of each layer",
        says=Said("a forward without a graph, and in backward one with it", FUNCTION),
        expected=(2,) * 4,
        measure=lambda: steps()[0].calls,
    )
    boundary = ROWS * WIDTH * 4
    yield exact(
        "boundary activations that are kept: slices + 1",
        says=Said("the input and each shard's output", FUNCTION),
        expected=(boundary,) * (LAYERS + 1),
        measure=kept,
        note=f"bytes of each storage that forward leaves alive: what each of {LAYERS} slices was called with, and the output",
    )
    yield derived(
        "activation checkpointing adds the slices' inputs, out and in, in bytes",
        says=Said("activations at the boundaries are copied to the CPU and back", DOCUMENT),
        expected=(LAYERS * boundary,) * 2,
        measure=_added,
    )
    yield from _differences()


def _cut() -> tuple[list[int], ...]:
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in stack((64, 4, 4, 4, 8))]
    return tuple([layers[index] for index in indices] for indices in slices(layers, 3))


def _moved(checkpointed: bool) -> tuple[int, int]:
    moved = steps()[1 + checkpointed].moved
    return moved["in"], moved["out"]


def _added() -> tuple[int, int]:
    (before_in, before_out), (after_in, after_out) = _moved(False), _moved(True)
    return after_in - before_in, after_out - before_out


def _differences() -> Iterator[Claim]:
    """What ours does in another way on purpose; what the original gets wrong among it."""
    parameters = 4 * LAYERS * (WIDTH * WIDTH + WIDTH)
    yield difference(
        "traffic of a step: parameters in twice (2P), gradients out (P), bytes",
        says=Said("shards are copied to the GPU and back, in forward and in backward", DOCUMENT),
        expected=(2 * parameters, parameters),
        measure=lambda: _moved(False),
        note=f"copies between the CPU and a simulated device; P = {parameters}; with parameters copied back it is 5P",
    )
    yield difference(
        "slices whose parameters are on the device at most",
        says=Said("1: a shard is dropped before the next is loaded", FUNCTION),
        expected=2,
        measure=resident,
        note="the next slice is loaded while one computes",
    )
    yield difference(
        "a last dimension of 1 stays",
        says=Said("the output is squeezed", FUNCTION),
        expected=(ROWS, 1),
        measure=_shape,
        note="a fault of the original",
    )
    yield difference(
        "two forwards before their backwards, dropout in each slice: the plain model's gradients",
        says=Said("one state of the generator for all shards, and activations on the module", FUNCTION),
        expected="bit for bit",
        measure=lambda: "bit for bit" if two_forwards() else "others",
        note="a fault of the original",
    )


def _noisy(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout()) for _ in range(3)), nn.Linear(WIDTH, 1))


def two_forwards() -> bool:
    """Whether two forwards before their backwards, through dropout, give the plain model's outputs and gradients."""
    plain, model = _noisy(0), OffloadModel(_noisy(0), HOST, num_slices=3, checkpoint_activation=True)
    batches = torch.randn(2, ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    found = []
    for one in (plain, model):
        torch.manual_seed(2)
        outputs = [one(batch) for batch in batches]
        for output in outputs:
            output.square().sum().backward()
        found.append([*outputs, *(parameter.grad for parameter in one.parameters())])
    return all(a is not None and b is not None and torch.equal(a, b) and a.any() for a, b in zip(*found, strict=True))


def _shape() -> tuple[int, ...]:
    model = OffloadModel(_noisy(0), HOST, num_slices=3, checkpoint_activation=True, num_microbatches=2)
    return tuple(model(torch.randn(ROWS, WIDTH)).shape)


PAPER = Paper(
    "offload",
    "OffloadModel",
    "FairScale's OffloadModel (fairscale/experimental/nn/offload.py); L2L, arXiv 2002.05645; ZeRO-Offload, arXiv 2101.06840",
    "`impls.offload.OffloadModel` on a simulated second device: copies between it and the CPU are counted as operators make "
    "them, calls by hooks of the layers, storages by their lifetimes; gradients equal the plain model's bit for bit. FairScale "
    "was read, not run.",
    claims,
)
