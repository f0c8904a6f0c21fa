"""What it costs to run a region again: its forward's time, or its operators' work where times cannot be told apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Unit = Literal["seconds", "FLOPs", "bytes"]
SHORTEST = 1e-3  # seconds; if all regions take less, that is mostly Python's part of their operators
NOISE = 2.0  # times are told apart if they differ by more than this many times the noise


@dataclass(frozen=True)
class Work:
    """What the operators of regions' forward do, which is the same in each run: FLOPs, bytes that they make, their number."""

    flops: int
    made_bytes: int
    operators: int


def pooled(works: Sequence[Work], rounds: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The least seconds of each group of regions, with those of all groups that do the same work. ``rounds`` are by group."""
    least: dict[Work, float] = {}
    for work, times in zip(works, rounds, strict=True):
        least[work] = min(*times, least.get(work, times[0]))
    return tuple(least[work] for work in works)


def costs_of(works: Sequence[Work], rounds: Sequence[Sequence[float]]) -> tuple[Unit, tuple[float, ...]]:
    """What each group of regions costs, and in which unit.

    It is seconds if some group takes ``SHORTEST`` or more and the groups differ by more than noise, which is how far the
    median of a group's rounds is above the least. Else it is FLOPs, or bytes if there is a group for which none are counted,
    as for attention's fused kernel on the CPU.
    """
    seconds = pooled(works, rounds)
    noise = max((statistics.median(times) - min(times) for times in rounds), default=0.0)
    if max(seconds, default=0.0) >= SHORTEST and max(seconds) - min(seconds) > NOISE * noise:
        return "seconds", seconds
    if all(one.flops for one in works):
        return "FLOPs", tuple(float(one.flops) for one in works)
    return "bytes", tuple(float(one.made_bytes) for one in works)
