"""Segments inside segments: the O(log n) plan of Chen et al. 2016, section 4.4, and nesting down to single layers."""

from __future__ import annotations

from impls.schedules.plan import Keep, Part, Plan, Region
from impls.schedules.validation import require_int


def recursive(count: int, parts: int = 2) -> Plan:
    """A chain in ``parts`` equal parts, all but the last regions, and each part cut in the same way down to single stages.

    With k = parts - 1 inputs stored at each level, memory is k · log(n) / log(k + 1), at O(n log n) extra forwards. If the
    count does not divide evenly, the first parts are the longer ones. Raises ValueError for parts < 2.
    """
    require_int("count", count, least=1)
    require_int("parts", parts, least=2)
    return _halves(0, count, parts)


def binary(count: int) -> Plan:
    """Halves of halves, both of them regions, down to regions of a single stage; the whole is not a region.

    The nesting that PyTorch pull request 90105 made possible. The first half is longer by one stage in an odd count.
    """
    require_int("count", count, least=1)
    return _both(0, count)


def _halves(start: int, stop: int, parts: int) -> Plan:
    plan: list[Part] = []
    while stop - start > 1:
        size = -(-(stop - start) // parts)
        ends = [min(start + size * index, stop - 1) for index in range(1, parts)]
        for end in ends:
            if end > start:
                plan.append(Region(_halves(start, end, parts)))
                start = end
    return (*plan, Keep(start))


def _both(start: int, stop: int) -> Plan:
    if stop - start == 1:
        return (Keep(start),)
    middle = (start + stop + 1) // 2
    return Region(_both(start, middle)), Region(_both(middle, stop))
