"""Binomial checkpointing of equal stages: Griewank & Walther 2000, Algorithm 799 (doi 10.1145/347837.347846).

Invariant: a plan for ``count`` stages with ``snapshots`` is a region over the first i, then the plan for the others with
one snapshot less. The region's input is the snapshot; the region itself, when it runs again, may use as many snapshots
as its parent had, since by then the others are free. A snapshot is a stored input, the chain's own among them.
"""

from __future__ import annotations

import math

from impls.schedules.plan import Keep, Part, Plan, Region
from impls.schedules.validation import require_int


def longest(snapshots: int, repeats: int) -> int:
    """β(s, t): the most stages that s snapshots reverse when none is advanced over more than t times."""
    return math.comb(snapshots + repeats, snapshots) if repeats >= 0 else 0


def advances(count: int, snapshots: int) -> int:
    """t(l, s): the least number of forward runs that keep nothing, for ``count`` stages and so many snapshots."""
    require_int("count", count, least=1)
    require_int("snapshots", snapshots, least=0 if count == 1 else 1)
    repeats = _repeats(count, snapshots)
    return repeats * count - longest(snapshots + 1, repeats - 1)


def revolve(count: int, snapshots: int) -> Plan:
    """The plan of least forward runs, ``count + advances(count, snapshots)``, that stores at most ``snapshots`` inputs.

    Optimal for stages of equal cost. Each stage that keeps what it saves does so alone, right before its backward. Raises
    ValueError for counts and snapshots below 1.
    """
    require_int("count", count, least=1)
    require_int("snapshots", snapshots, least=1)
    return _plan(0, count, snapshots)


def split(count: int, snapshots: int) -> int:
    """The length of the first region of an optimal plan, for ``count`` above 1."""
    repeats = _repeats(count, snapshots)
    # Both sides must stay between the longest chains of one repetition less and of as many.
    return max(1, longest(snapshots, repeats - 2), count - longest(snapshots - 1, repeats))


def _repeats(count: int, snapshots: int) -> int:
    repeats = 0
    while longest(snapshots, repeats) < count:
        repeats += 1
    return repeats


def _plan(start: int, count: int, snapshots: int) -> Plan:
    if snapshots == 1:  # from the inside out, for this plan nests as deep as the chain is long
        plan: Plan = (Keep(start),)
        for stage in range(start + 1, start + count):
            plan = (Region(plan), Keep(stage))
        return plan
    parts: list[Part] = []
    while count > 1:
        first = split(count, snapshots)
        parts.append(Region(_plan(start, first, snapshots)))
        start, count, snapshots = start + first, count - first, snapshots - 1
    return (*parts, Keep(start))
