"""How many programs a law that takes ranks has: as many as find its known faults again, as laws of one process have.

Programs under ranks take longer, so that the least is lower. ``reprise cases --ranks N --write`` measures in which share of a
law's programs its mutants and the declared limits show, and keeps it beside this module.
"""

from __future__ import annotations

import functools
from pathlib import Path

from conformance.judging.case_numbers import KnownFaults, read
from conformance.judging.law import Law, Profile

OF_EACH = 2  # programs of each strategy, at least: Hypothesis draws the simplest one first
PATH = Path(__file__).with_name("found_faults.json")

_read = functools.cache(read)


def number_of_cases(law: Law, profile: Profile, strategies: int = 1) -> float:
    """How many cases a law has in a profile, shared equally by so many strategies; not rounded."""
    return number_that_finds(_read(PATH).get(law.name), law, profile, strategies)


def number_that_finds(found: KnownFaults | None, law: Law, profile: Profile, strategies: int = 1) -> float:
    """How many cases a law has in a profile if these are the faults that it has found so far."""
    most, least = profile.cases * law.effort, max(profile.least, OF_EACH * strategies)
    if found is None or profile.certainty == 1:
        return most
    return min(most, max(least, found.cases_needed(profile.certainty)))
