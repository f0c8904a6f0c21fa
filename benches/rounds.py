"""Contenders timed round by round, so that what else the machine does falls on all of them alike."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds a call, by contender and round; the rounds of all contenders are the same."""

    seconds: Mapping[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def least(self, name: str) -> float:
        return min(self.seconds[name])

    def ratio(self, name: str, against: str, floor: str) -> float:
        """How the time that ``name`` adds to ``floor`` compares with what ``against`` adds, by medians."""
        base = self.median(floor)
        return (self.median(name) - base) / (self.median(against) - base)

    def spread(self, name: str, against: str, floor: str) -> tuple[float, float]:
        """The quartiles of that ratio, taken round by round."""
        rounds = zip(self.seconds[name], self.seconds[against], self.seconds[floor], strict=True)
        first, _, third = statistics.quantiles([(one - base) / (other - base) for one, other, base in rounds], n=4)
        return first, third


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int,
    warm: int = 3,
    clock: Callable[[], float] | None = None,
) -> Times:
    """Time every contender in every round, ``calls`` calls each, in an order that is drawn anew for each round.

    Without another clock it is the thread's own processor time: a chain on the CPU with one thread runs backward on the
    calling thread, and what other processes take is left out. What they do to the caches is not. ``warm`` rounds are not
    counted.
    """
    tell = clock or time.thread_time
    order = list(contenders)
    shuffle = random.Random(0).shuffle
    seconds: dict[str, list[float]] = {name: [] for name in order}
    for number in range(warm + rounds):
        shuffle(order)
        for name in order:
            call = contenders[name]
            started = tell()
            for _ in range(calls):
                call()
            if number >= warm:
                seconds[name].append((tell() - started) / calls)
    return Times({name: tuple(values) for name, values in seconds.items()})
