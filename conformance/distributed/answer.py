"""What one rank answers when it has run a program."""

from __future__ import annotations

import ctypes
import io
import pickle
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from conformance.judging.judge import Observation

Place = str  # "forward", "recomputation" or "backward": when a collective was issued
BACKENDS = MappingProxyType({"cpu": "gloo", "cuda": "nccl"})  # of process groups, by the type of device
Region = tuple[str, ...]  # the functions of a region and of those around it, the outermost one first; () is no region


@dataclass(frozen=True)
class Collective:
    """A collective that a rank issued: its name, the bytes of what it gives, when that was, and by which region."""

    name: str
    bytes: int
    place: Place
    region: Region = ()


@dataclass(frozen=True)
class Task:
    """What ranks are told to run: a program's text, on an implementation by its name, "" for plain.

    ``options`` are passed to its checkpoint. With ``counts``, collectives and storages are counted. ``device`` is the type of
    device that each rank computes on, by which its group's backend is chosen. ``seconds`` are the limit
    after which a rank writes down where it stands. A rank whose program has ended, or raised, gives the others ``grace``
    seconds to come to their ends before it leaves the group; fewer where these certainly wait for it.
    """

    source: str
    subject: str
    options: tuple[tuple[str, object], ...] = ()
    counts: bool = False
    device: str = "cpu"
    seconds: float = 15.0
    grace: float = 1.0


@dataclass
class Answer:
    """What one rank observed; ``collectives`` and ``kept`` are empty where the task does not count.

    ``raised`` is the time at which the program raised, on a clock that all ranks of a machine share. ``kept`` has, for each
    note of what the program holds, how many storages that regions' functions made are alive besides.
    """

    rank: int
    observation: Observation
    raised: float = 0.0
    collectives: tuple[Collective, ...] = ()
    kept: dict[str, int] = field(default_factory=dict)

    def issued(self, *places: Place, region: Region | None = None) -> Counter[str]:
        """How many collectives of each name were issued at these times, at any without one, by this region or by all."""
        where = (one for one in self.collectives if region is None or one.region == region)
        return Counter(one.name for one in where if not places or one.place in places)

    @property
    def regions(self) -> list[Region]:
        """The regions that issued a collective, in their order."""
        return sorted({one.region for one in self.collectives if one.region})


class _Pickler(pickle.Pickler):
    """Sends tensors on the CPU as their bytes: torch's own way makes a file of each, which takes longer than most programs."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        if value.requires_grad or value.is_quantized or not value.numel():
            return NotImplemented
        flat = value.resolve_conj().resolve_neg().contiguous()
        return _tensor, (ctypes.string_at(flat.data_ptr(), flat.nbytes), flat.dtype, tuple(flat.shape))


def _tensor(data: bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def sent(value: object) -> bytes:
    """A value as bytes, which ``pickle.loads`` reads."""
    file = io.BytesIO()
    _Pickler(file).dump(value)
    return file.getvalue()


class Unjudged(RuntimeError):
    """A fault of the suite or of the machine, which is no verdict: the first line says what it is."""


class WorldEnded(Exception):
    """A rank gave no answer in time, or ended: the world is gone, and the next task gets a new one.

    ``hangs`` distinguishes the two; ``told`` says which ranks, and what each was executing.
    """

    def __init__(self, told: str, *, hangs: bool) -> None:
        super().__init__(told)
        self.told, self.hangs = told, hangs
