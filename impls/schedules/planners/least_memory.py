"""The plan of least memory, and so the least budget that any plan of a chain can meet: O(n²) memory, O(n³) time."""

from __future__ import annotations

import numpy as np

from impls.schedules.chain import Chain, require_chain
from impls.schedules.plan import Keep, Part, Plan, Region
from impls.schedules.planners.sizes import Ints, Sizes


def least_memory(chain: Chain, *, early_stop: bool = True) -> Plan:
    """A plan whose peak no other plan is below, whatever its time; ``interpret`` gives the peak.

    Raises ValueError when the sizes sum to 2**62 or more. Source: the recursion of Beaumont et al. 2019 with the peak in
    place of the time.
    """
    require_chain(chain)
    sizes = Sizes(chain, early_stop=early_stop)
    return _plan(sizes, _table(sizes))


def _table(sizes: Sizes) -> Ints:
    """The least peak of stages ``start`` to ``stop``, their input not counted, by looseness of the input, start and stop."""
    table = np.zeros((2, sizes.count, sizes.count), np.int64)
    for start in reversed(range(sizes.count)):
        for stop in range(start, sizes.count):
            for loose in (False, True):
                table[int(loose), start, stop] = min(_choices(sizes, table, start, stop, loose=loose))
    return table


def _choices(sizes: Sizes, table: Ints, start: int, stop: int, *, loose: bool) -> tuple[int, int]:
    """The least peak if the first stage keeps what it saves, and if it lies in a region."""
    need = sizes.keep(start, stop, loose=loose)
    if start == stop:
        return need, need
    stays = sizes.saved[start] - (sizes.freed[start] if loose else 0)
    keeps = max(need, int(stays + table[int(sizes.loosens[start]), start + 1, stop]))
    return keeps, int(_regions(sizes, table, start, stop).min())


def _regions(sizes: Sizes, table: Ints, start: int, stop: int) -> Ints:
    """The least peak with a region over ``start`` to each of ``start .. stop - 1``."""
    after = sizes.output[start:stop] + table[1, start + 1 : stop + 1, stop]
    return np.maximum(np.maximum(sizes.drop(start, stop), after), table[0, start, start:stop])


def _plan(sizes: Sizes, table: Ints) -> Plan:
    # An explicit stack, because plans of little memory nest as deep as the chain is long.
    pending: list[tuple[list[Part], int, int, bool]] = [([], 0, sizes.count - 1, False)]
    while True:
        parts, start, stop, loose = pending.pop()
        if start > stop:
            if not pending:
                return tuple(parts[:-1])  # the end is no stage of the chain
            pending[-1][0].append(Region(tuple(parts)))
            continue
        keeps, drops = _choices(sizes, table, start, stop, loose=loose)
        if keeps <= drops:
            parts.append(Keep(start))
            pending.append((parts, start + 1, stop, bool(sizes.loosens[start])))
        else:
            end = start + int(_regions(sizes, table, start, stop).argmin())
            pending += [(parts, end + 1, stop, True), ([], start, end, False)]
