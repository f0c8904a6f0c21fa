"""FairScale's OffloadModel: how it cuts a model, and what one step costs in forwards, memory and bytes that are moved."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from benches.papers.live import Live
from benches.papers.paper import Paper, Row, exact, trend
from conformance.residents import Residents
from conformance.second_device import Moves, second
from impls.offload import OffloadModel, slices

WIDTH, LAYERS, ROWS = 8, 4, 16  # layers of one shape, as many slices
HOST = "cpu"


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
        sizes = live.sizes
    del output
    return sizes


def resident() -> tuple[int, int]:
    """The most slices of which copies are alive at once, while a layer runs and over all, in forward and backward."""
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
    return max(map(len, present)), len(present[-1])


def rows() -> Iterator[Row]:
    """The greedy cut, forwards, boundary activations and traffic."""
    layers = [sum(parameter.numel() for parameter in layer.parameters()) for layer in stack((64, 4, 4, 4, 8))]
    cut = [[layers[index] for index in indices] for indices in slices(layers, 3)]
    yield exact("Linear 64-4, 4-4, 4-4, 4-8 in 3 slices", says=([260], [20, 20, 40], []), measured=tuple(cut))
    done, plain, checkpointed = steps()
    yield exact(
        "executed: bytes of the slices' inputs, moved to the host in forward",
        says=(4 * ROWS * 64, 4 * ROWS * 4),
        measured=done.boundaries,
        note="of the first layer and of the second; the third slice is empty",
    )
    yield exact("activation checkpointing: forwards of each layer", says=(2,) * 4, measured=done.calls)
    one = ROWS * WIDTH * 4
    yield exact(
        "boundary activations that are kept: slices + 1",
        says=(one,) * (LAYERS + 1),
        measured=kept(),
        note=f"bytes of each storage that forward leaves alive: what each of {LAYERS} slices was called with, and the output",
    )
    yield from _traffic(plain.moved, checkpointed.moved)
    yield from _faults()


def _traffic(plain: Counter[str], moved: Counter[str]) -> Iterator[Row]:
    parameters, boundary = 4 * LAYERS * (WIDTH * WIDTH + WIDTH), ROWS * WIDTH * 4
    yield exact(
        "traffic of a step: parameters in twice (2P), gradients out (P), bytes",
        says=(2 * parameters, parameters),
        measured=(plain["in"], plain["out"]),
        note=f"copies between the CPU and a simulated device; P = {parameters}; 5P when parameters were copied back",
    )
    beside = moved["in"] - 2 * parameters, moved["out"] - parameters
    yield exact("activation checkpointing adds the slices' inputs, out and in", says=(LAYERS * boundary,) * 2, measured=beside)


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


def _faults() -> Iterator[Row]:
    """What the original gets wrong."""
    model = OffloadModel(_noisy(0), HOST, num_slices=3, checkpoint_activation=True, num_microbatches=2)
    shape = tuple(model(torch.randn(ROWS, WIDTH)).shape)
    yield exact(
        "a last dimension of 1 stays", says=(ROWS, 1), measured=shape, note="a fault of the original that must not be here"
    )
    yield exact(
        "two forwards before their backwards, dropout in each slice: the plain model's gradients",
        says="bit for bit",
        measured="bit for bit" if two_forwards() else "others",
        note="the original replays one state of the generator for all slices, and keeps activations on the module",
    )


def more() -> Iterator[Row]:
    """How much of the model is on the device."""
    most, after = resident()
    yield trend(
        "at most one slice's parameters on the device",
        says=1,
        measured=most,
        holds=most <= 1,
        note=f"not so by design: the next slice is loaded while one computes; after the step there are {after}",
    )


PAPER = Paper(
    "offload",
    "OffloadModel",
    "FairScale's OffloadModel; L2L, arXiv 2002.05645; ZeRO-Offload, arXiv 2101.06840",
    "`impls.offload.OffloadModel` on a simulated second device: copies between it and the CPU are counted as operators make "
    "them, calls by hooks of the layers, storages by their lifetimes; gradients equal the plain model's bit for bit. What is "
    "claimed follows by arithmetic from FairScale's code and the papers, and was not measured there.",
    rows,
    more,
)
