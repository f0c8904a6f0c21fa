"""How many cases a law has: as many as find again, with a given probability, each fault that the law has found so far.

A fault shows in some share of a law's programs. Where the rarest one shows in every program, a few cases are enough; where it
shows in one of sixty, all runs need many. ``reprise cases --write`` measures the shares and keeps them beside this module.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.judging.law import Law, Profile

OF_EACH = 3  # cases of each strategy, at least: Hypothesis draws the simplest program first
CASES_OF_FLOOR = 12  # a law's floor is for so many cases, times the law's effort; fewer cases lower it in proportion
PATH = Path(__file__).with_name("found_faults.json")


@dataclass(frozen=True)
class KnownFaults:
    """The faults that a law has found: how many, which one in the smallest share of its programs, and that share."""

    faults: int
    rarest: str
    share: float

    def __post_init__(self) -> None:
        if not (self.faults > 0 and 0 < self.share <= 1):
            raise ValueError(f"{self.rarest}: {self.faults} faults, share {self.share}; accepted are 1 or more, above 0 to 1")

    def cases_needed(self, certainty: float) -> float:
        """How many cases show the rarest fault with this probability, below 1."""
        return 1 if self.share == 1 else math.log(1 - certainty) / math.log(1 - self.share)

    def certainty(self, cases: float) -> float:
        """With which probability so many cases show the rarest fault."""
        return 1 - (1 - self.share) ** cases


def read(path: Path = PATH) -> Mapping[str, KnownFaults]:
    """What each law has found, by its name. Laws that have found nothing yet are left out."""
    return {law: KnownFaults(**found) for law, found in json.loads(path.read_text(encoding="utf-8"))["laws"].items()}


_read = functools.cache(read)


def number_of_cases(law: Law, profile: Profile, strategies: int = 1) -> float:
    """How many cases a law has in a profile, shared equally by so many strategies.

    Not rounded, as an implementation may get a share of them.
    """
    return number_that_finds(_read().get(law.name), law, profile, strategies)


def number_that_finds(found: KnownFaults | None, law: Law, profile: Profile, strategies: int = 1) -> float:
    """How many cases a law has in a profile if these are the faults that it has found so far."""
    most, least = profile.cases * law.effort, max(profile.least * law.effort, OF_EACH * strategies)
    # Of laws that can enumerate their programs, each one is of something else, for example of another operator.
    if found is None or profile.certainty == 1 or law.every is not None:
        return most
    return min(most, max(least, found.cases_needed(profile.certainty)))
