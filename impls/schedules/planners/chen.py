"""Segments of one level: Chen, Xu, Zhang, Guestrin 2016 (arXiv 1604.06174), sections 4.1 and 4.3."""

from __future__ import annotations

import itertools
import math

from impls.schedules.chain import Chain, require_chain
from impls.schedules.interpreter import interpret
from impls.schedules.plan import Infeasible, Plan, Region, kept
from impls.schedules.validation import require_int


def uniform(count: int, segments: int) -> Plan:
    """``count`` stages in ``segments`` regions of equal length, of which the last takes the rest and keeps all it saves.

    The cut of ``checkpoint_sequential``. Raises ValueError when segments is not between 1 and count.
    """
    require_int("count", count, least=1)
    require_int("segments", segments, least=1, most=count)
    size = count // segments
    return _cut(list(range(0, size * segments, size)), count)


def sqrt_segments(count: int) -> Plan:
    """``uniform`` with as many segments as makes inputs kept plus stages kept least: about the root of ``count``.

    Of several best numbers it takes the one nearest to the root. Equal stages are assumed, as in the paper.
    """
    require_int("count", count, least=1)
    root = math.sqrt(count)

    def units(segments: int) -> int:
        return segments - 1 + count - count // segments * (segments - 1)

    return uniform(count, min(range(1, count + 1), key=lambda segments: (units(segments), abs(segments - root))))


def greedy(chain: Chain, segment_size: float) -> Plan:
    """Segments that each grow while what their stages save is at most ``segment_size``; the last keeps all it saves.

    A stage that is larger by itself is a segment by itself. One pass: O(n). Raises TypeError or ValueError for a size that is
    no number, or negative.
    """
    require_chain(chain)
    if isinstance(segment_size, bool) or not isinstance(segment_size, int | float):
        raise TypeError(f"segment_size is {segment_size!r}; it must be a number")
    if not segment_size >= 0:  # as NaN is not
        raise ValueError(f"segment_size is {segment_size}; it must be at least 0")
    starts, total = [0], 0
    for index, stage in enumerate(chain):
        if total and total + stage.saved > segment_size:
            starts.append(index)
            total = 0
        total += stage.saved
    return _cut(starts, len(chain)) if chain else ()


def searched(chain: Chain, budget: int | None = None, *, tries: int = 64) -> Plan:
    """The best of the greedy cuts: the least peak, or with ``budget`` the least time of those whose peak is within it.

    The segment size is tried at ``tries`` values, each the same factor above the last, from the largest stage to the whole
    chain. Raises Infeasible when no cut that was tried is within the budget; other plans may be.
    """
    require_chain(chain)
    require_int("tries", tries, least=2)
    if budget is not None:
        require_int("budget", budget, least=0)
    if not chain:
        return ()
    low, high = max(1, max(stage.saved for stage in chain)), max(1, sum(stage.saved for stage in chain))
    sizes = [low * (high / low) ** (step / (tries - 1)) for step in range(tries - 1)] + [high]
    plans = {plan: interpret(plan, chain) for plan in dict.fromkeys(greedy(chain, size) for size in sizes)}
    if budget is None:
        return min(plans, key=lambda plan: (plans[plan].peak, plans[plan].time))
    within = [plan for plan, account in plans.items() if account.peak <= budget]
    if not within:
        least = min(account.peak for account in plans.values())
        raise Infeasible(f"budget is {budget}; the least peak of a greedy cut into segments that was tried is {least}")
    return min(within, key=lambda plan: (plans[plan].time, plans[plan].peak))


def _cut(starts: list[int], count: int) -> Plan:
    """Regions that begin at ``starts``, the last one kept instead."""
    regions = [Region(kept(start, stop)) for start, stop in itertools.pairwise(starts)]
    return (*regions, *kept(starts[-1], count))
