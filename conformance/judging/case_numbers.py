"""How many programs of a law are tried: as many as find again, with a given probability, each fault that the law has found.

A fault shows in some share of a law's programs. Where the rarest one showed in every program, a few are enough; where it showed
in one of sixty, no run should have fewer. The shares are measured by ``reprise cases --write``, and kept beside this module.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from conformance.judging.law import Law, Profile

OF_EACH = 3  # programs of each strategy, at least: the first one is the simplest
PATH = Path(__file__).with_name("found_faults.json")


@dataclass(frozen=True)
class Found:
    """The faults that a law has found: how many, which one in the smallest share of its programs, and that share."""

    faults: int
    rarest: str
    share: float

    def __post_init__(self) -> None:
        if not (self.faults > 0 and 0 < self.share <= 1):
            raise ValueError(f"{self.rarest}: {self.faults} faults, share {self.share}; accepted are 1 or more, above 0 to 1")

    def programs_needed(self, certainty: float) -> float:
        """How many programs show the rarest fault with this probability, below 1."""
        return 1 if self.share == 1 else math.log(1 - certainty) / math.log(1 - self.share)


def read(path: Path = PATH) -> Mapping[str, Found]:
    """What each law has found, by its name. Laws that have found nothing yet are left out."""
    return {law: Found(**found) for law, found in json.loads(path.read_text(encoding="utf-8"))["laws"].items()}


_read = functools.cache(read)


def number_of_cases(law: Law, profile: Profile, strategies: int = 1) -> float:
    """How many programs of a law a profile tries, shared equally by so many strategies.

    Not rounded, as an implementation may get a share of them.
    """
    return number_that_finds(_read().get(law.name), law, profile, strategies)


def number_that_finds(found: Found | None, law: Law, profile: Profile, strategies: int = 1) -> float:
    """How many programs of a law a profile tries if this is what the law has found so far."""
    most, least = profile.cases * law.effort, max(profile.least * law.effort, OF_EACH * strategies)
    # Of laws that can enumerate their programs, each one is of something else, for example of another operator.
    if found is None or profile.certainty == 1 or law.every is not None:
        return most
    return min(most, max(least, found.programs_needed(profile.certainty)))
