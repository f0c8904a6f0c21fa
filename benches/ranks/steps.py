"""What one rank runs: a decoder that is trained under FSDP2, under tensor parallelism and FSDP2, or as a stage of 1F1B.

It runs in the world of :mod:`conformance.distributed.world`, whose ranks are given the text that :func:`source` makes.
"""

from __future__ import annotations

import gc
import hashlib
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor

import impls
from benches.ranks import memory
from benches.ranks.decoder import Around, Decoder, Shape, loss, plainly
from benches.ranks.traffic import Traffic, TrafficMode

FSDP, TENSOR, PIPELINE = "FSDP2", "TP × FSDP2", "1F1B"
SHARES = 2  # ranks that share a block under tensor parallelism
WARM = 2  # rounds that are not counted
TRIES = 8  # recordings of memory at most
NOTHING = 4096  # bytes: what Python and torch keep of a first call is smaller, what collectives are about is larger


@dataclass(frozen=True)
class Work:
    """What ranks measure: a parallelism, the shape, microbatches of a pipeline, and implementations by name."""

    parallelism: str
    shape: Shape
    microbatches: int
    names: Sequence[str]
    rounds: int = 0  # of timing; without any, bytes are measured


def source(work: Work) -> str:
    """The program that ranks run."""
    call = f"measured(Work({work.parallelism!r}, Shape(**{asdict(work.shape)!r}), {work.microbatches}, {tuple(work.names)!r}"
    return (
        "from benches.ranks.steps import Shape, Work, measured\n\n"
        f"def run(checkpoint, note, device):\n    note('measured', {call}, {work.rounds})))\n"
    )


def around(name: str) -> Around:
    """How an implementation calls a block's function."""
    return plainly if name == "plain" else impls.find(name, "checkpoint").checkpoint


class Training:
    """A rank's part of the decoder with Adam, whose state is there after ``prepare``; ``step`` is forward and backward."""

    def __init__(self, work: Work, name: str) -> None:
        self.work = work
        torch.manual_seed(0)
        make = {FSDP: self._sharded, TENSOR: self._shared, PIPELINE: self._staged}[work.parallelism]
        self.step: Callable[[], object] = make(around(name))
        self.optimizer = torch.optim.Adam(self.model.parameters(), foreach=False)

    def _sharded(self, call: Around) -> Callable[[], object]:
        self.model: nn.Module = Decoder(self.work.shape, call)
        return self._under_fsdp(None, dist.get_rank())

    def _shared(self, call: Around) -> Callable[[], object]:
        """Every rank's share of a block begins with the same weights, which is one model among others."""
        mesh = init_device_mesh("cpu", (dist.get_world_size() // SHARES, SHARES), mesh_dim_names=("data", "tensor"))
        group = mesh["tensor"].get_group()
        self.model = Decoder(self.work.shape, call, ranks=SHARES, add=lambda value: dist.all_reduce(value, group=group))
        return self._under_fsdp(mesh["data"], mesh["data"].get_local_rank())

    def _under_fsdp(self, mesh: Any, seed: int) -> Callable[[], object]:
        model: Any = self.model
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        tokens, targets = _data(self.work.shape, 1, seed)
        return lambda: loss(model(tokens), targets).backward()

    def _staged(self, call: Around) -> Callable[[], object]:
        rank, ranks, shape = dist.get_rank(), dist.get_world_size(), self.work.shape
        first, last = rank == 0, rank == ranks - 1
        self.model = Decoder(shape, call, layers=shape.layers // ranks, first=first, last=last)
        stage = PipelineStage(self.model, rank, ranks, torch.device("cpu"))
        schedule = Schedule1F1B(stage, self.work.microbatches, loss_fn=loss)
        tokens, targets = _data(shape, self.work.microbatches, 0)
        inputs = [tokens] * first
        given: dict[str, Any] = {"target": targets, "losses": []} if last else {}
        return lambda: schedule.step(*inputs, return_outputs=False, **given)

    def prepare(self) -> None:
        """A whole step of training, after which all is there that is made once."""
        self.step()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def gradients(self) -> list[Tensor]:
        """This rank's parts of all gradients."""
        found = [one.grad for one in self.model.parameters() if one.grad is not None]
        return [one.to_local() if isinstance(one, DTensor) else one for one in found]


def _data(shape: Shape, microbatches: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    size = (microbatches * shape.batch, shape.length)
    tokens, targets = (torch.randint(shape.vocabulary, size, generator=generator) for _ in range(2))
    return tokens, targets


def measured(work: Work) -> str:
    """What this rank measures, as JSON: seconds of every round by name, or bytes of the one implementation."""
    return json.dumps(_times(work) if work.rounds else _bytes(work))


def _bytes(work: Work) -> dict[str, Any]:
    """The most bytes in a step, what was there before included, its collectives, and a digest of gradients."""
    (name,) = work.names
    peak, (training, traffic) = _peak(work, name), _counted(work, name)
    gradients = training.gradients()
    digest = hashlib.sha256(b"".join(one.contiguous().numpy().tobytes() for one in gradients)).hexdigest()
    some = len(gradients) == len([*training.model.parameters()]) and all(bool(one.any()) for one in gradients if one.numel())
    return {"peak": peak, "sent": traffic.sent, "collectives": traffic.rows, "gradients": digest if some else ""}


def _peak(work: Work, name: str) -> int:
    """The peak of a recording in which no rank missed a free; RuntimeError if there is none."""

    def prepare() -> Callable[[], object]:
        training = Training(work, name)
        training.prepare()
        gc.collect()
        return lambda: training.step()  # which keeps the optimizer

    for _ in range(TRIES):
        peak, unseen = memory.recorded(prepare)
        missed = torch.tensor(unseen)
        dist.all_reduce(missed, dist.ReduceOp.MAX)
        if missed < NOTHING:
            return peak
    raise RuntimeError(f"in {TRIES} recordings, {unseen} bytes were not seen to be freed")


def _counted(work: Work, name: str) -> tuple[Training, Traffic]:
    training = Training(work, name)
    training.prepare()
    with TrafficMode() as mode:
        training.step()
    return training, mode.traffic


def _times(work: Work) -> dict[str, list[float]]:
    """Seconds from the moment at which all ranks begin a step to that at which all have ended it."""
    trainings = {name: Training(work, name) for name in work.names}
    for one in trainings.values():
        one.prepare()
    order, shuffle = [*work.names], random.Random(0).shuffle  # the same on every rank
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(WARM + work.rounds):
        shuffle(order)
        for name in order:
            trainings[name].optimizer.zero_grad()
            dist.barrier()
            started = time.perf_counter()
            trainings[name].step()
            dist.barrier()
            if number >= WARM:
                seconds[name].append(time.perf_counter() - started)
    return seconds
