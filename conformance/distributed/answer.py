"""What one rank answers when it has run a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from conformance.judging.judge import Observation

Place = str  # "forward", "recomputation" or "backward": when a collective was issued


@dataclass(frozen=True)
class Collective:
    """A collective that a rank issued: its name, the bytes of what it was given, and when that was."""

    name: str
    bytes: int
    place: Place


@dataclass(frozen=True)
class Task:
    """What ranks are told to run: a program's text, on an implementation by its name, "" for plain.

    ``options`` are passed to its checkpoint. With ``counts``, collectives and storages are counted. After ``seconds`` a rank
    writes down its stack.
    """

    source: str
    subject: str
    options: tuple[tuple[str, object], ...] = ()
    counts: bool = False
    seconds: float = 15.0


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

    def issued(self, *places: Place) -> Counter[str]:
        """How many collectives of each name were issued in these places, by default in all."""
        return Counter(one.name for one in self.collectives if not places or one.place in places)


class WorldEnded(Exception):
    """A rank gave no answer in time, or ended: the world is gone, and the next task gets a new one.

    ``hangs`` distinguishes the two; ``told`` says which ranks, and what each was executing.
    """

    def __init__(self, told: str, *, hangs: bool) -> None:
        super().__init__(told)
        self.told, self.hangs = told, hangs
