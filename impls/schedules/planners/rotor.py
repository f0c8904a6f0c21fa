"""The fastest plan within a budget for stages of any cost: Beaumont et al. 2019 (arXiv 1911.13214), "rotor".

Invariant: cost(s, t, m) is the least time of stages s to t within m, the input of s kept outside of m. Either s keeps
what it saves, and s + 1 to t have that much less; or s to some e lie in a region, e + 1 to t have the output of e less,
and the region, when it runs again, has all of m. Optimal among the plans of this package, which are the schedules that
keep what they store until its backward ("memory-persistent"), and up to the rounding of sizes to slots.

Where the input of s is loose (see ``sizes``) and s, which keeps, does not read it, the rest has that much more, and so
there are two costs for such an s: this is no part of the paper, in which a stage always keeps its input.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from impls.schedules.chain import Chain, require_chain
from impls.schedules.interpreter import interpret
from impls.schedules.plan import Infeasible, Keep, Part, Plan, Region, kept, text
from impls.schedules.planners.least_memory import least_memory
from impls.schedules.planners.sizes import Ints, Sizes
from impls.schedules.validation import require_int

Floats = NDArray[np.float64]


def optimal(chain: Chain, budget: int, *, slots: int = 500, early_stop: bool = True) -> Plan:
    """The plan of least time whose peak, as ``interpret`` gives it, is at most ``budget``, in the unit of the sizes.

    ``early_stop`` says how the plan is going to be executed. Sizes are rounded up to multiples of budget / ``slots``. Because
    of that rounding, plans that seem to take up to a quarter more than the budget are tried as well, and count if their true
    peak is within it. The plan is exactly optimal where the budget and all sizes are multiples of one number that the budget
    holds at most ``slots`` times, and when everything fits. When rounding alone leaves no plan, that of least memory is
    returned. Takes O(n³ · slots) time and O(n² · slots) memory, 5 bytes for each of n² · slots, and twice that for a chain with
    stages that do not read their input.

    Raises Infeasible when no plan is within the budget, with the least that one can be in, and ValueError when the sizes sum
    to 2**62 or more.
    """
    require_chain(chain)
    require_int("slots", slots, least=1)
    require_int("budget", budget, least=0)
    everything = kept(0, len(chain))
    if interpret(everything, chain, early_stop=early_stop).peak <= budget:
        return everything
    smallest = least_memory(chain, early_stop=early_stop)
    least = interpret(smallest, chain, early_stop=early_stop).peak
    if least > budget:
        raise Infeasible(f"budget is {budget}; the least that any plan of this chain needs is {least}")
    if budget == 0:
        return smallest
    search = _Search(chain, budget, slots, early_stop=early_stop)
    best, low, high = smallest, search.slots - 1, search.most + 1
    while high - low > 1:
        # First what the budget has: what fits that as rounded is legal. More room never makes a plan slower.
        room = search.slots if low < search.slots else (low + high) // 2
        if not search.feasible(room):
            low = room
            continue
        plan = search.plan(room)
        peak = interpret(plan, chain, early_stop=early_stop).peak
        if peak <= budget:
            best, low = plan, room
        elif room > search.slots:
            high = room
        else:
            raise AssertionError(f"a plan for a budget of {budget} takes {peak}: {text(plan)}")
    return best


class _Search:
    """The table of the dynamic program, by stop, start and slots, and the plan that is read from it.

    A row for a start is stored moved up by the slots of the output before it, because that is how it is always read: as
    what follows a region. So a candidate is a sum of two arrays without a gather.
    """

    def __init__(self, chain: Chain, budget: int, slots: int, *, early_stop: bool) -> None:
        self.sizes = sizes = Sizes(chain, early_stop=early_stop)
        whole = math.gcd(budget, *(int(size) for size in np.concatenate([sizes.output, sizes.saved])))
        if whole and budget // whole <= slots:
            slots = most = budget // whole
        else:
            most = slots + min(slots // 4, len(chain))  # each stage loses less than a slot by rounding
        self.budget, self.slots, self.most = budget, slots, most
        self.output, self.saved = self.rounded(sizes.output), self.rounded(sizes.saved)
        self.before, self.freed = self.rounded(sizes.before), -self.rounded(-sizes.freed)
        self.forward = np.array([*(stage.forward for stage in chain), 0], np.float64)
        self.backward = np.array([*(stage.backward for stage in chain), 0], np.float64)
        bound = self.table()
        self.columns = bound, (self.table() if self.freed.any() else bound)
        for start in reversed(range(sizes.count)):
            self.fill(start)

    def table(self) -> list[Floats]:
        """Room for the costs by stop, start and slots."""
        return [np.full((stop + 1, self.most + 1), np.inf) for stop in range(self.sizes.count)]

    def feasible(self, room: int) -> bool:
        """Whether there is a plan within so many slots, with sizes as rounded."""
        return bool(np.isfinite(self.columns[False][-1][0, room]))

    def slots_for(self, size: int) -> int:
        """A size in slots, rounded up."""
        return -(-size * self.slots // self.budget)

    def rounded(self, sizes: Ints) -> Ints:
        if int(np.abs(sizes).max()) < 2**62 // self.slots:  # else the product may not fit in 64 bits
            return -(-sizes * self.slots // self.budget)
        return np.array([self.slots_for(int(size)) for size in sizes], np.int64)

    def fill(self, start: int) -> None:
        row = np.empty((self.sizes.count, self.most + 1))  # cost(start, stop, ·), not moved
        moved = self.before[start]
        for stop in range(start, self.sizes.count):
            row[stop] = self.keeping(start, stop, loose=False)
            loose = self.keeping(start, stop, loose=True) if self.freed[start] else row[stop]
            if start < stop:
                times = self.dropping(row[start:stop], start, stop).min(axis=0)
                loose = np.minimum(loose, times)
                np.minimum(row[stop], times, out=row[stop])
            for table, cost in zip(self.columns, (row[stop], loose), strict=True):
                table[stop][start, moved:] = cost[: self.most + 1 - moved]

    def keeping(self, start: int, stop: int, *, loose: bool) -> Floats:
        """The time by slots if the first stage keeps what it saves."""
        need = self.slots_for(self.sizes.keep(start, stop, loose=loose))
        time = np.full(self.most + 1, np.inf)
        if start == stop:
            time[need:] = self.backward[start] + (0 if self.sizes.stopped[start] else self.forward[start])
            return time
        rest = self.columns[bool(self.sizes.loosens[start])][stop][start + 1]
        less = int(self.saved[start] - self.output[start])
        if loose:
            less -= int(self.freed[start])
        if less < 0:  # what is then beyond the end is never read: a loose input takes as many slots itself
            time[:less] = rest[-less:]
        elif less <= self.most:
            time[less:] = rest[: self.most + 1 - less]
        time[:need] = np.inf
        return time + (self.forward[start] + self.backward[start])

    def dropping(self, row: Floats, start: int, stop: int) -> Floats:
        """The time by end of the first region and slots, given the cost of the regions by end."""
        times = row + self.columns[True][stop][start + 1 : stop + 1]
        times += np.cumsum(self.forward[start:stop])[:, None]
        needs = self.rounded(self.sizes.drop(start, stop))
        worst = int(needs.max())
        times[:, :worst][np.arange(min(worst, self.most + 1)) < needs[:, None]] = np.inf
        return times

    def plan(self, room: int) -> Plan:
        """The fastest plan within so many slots."""
        pending: list[tuple[list[Part], int, int, int, bool]] = [([], 0, self.sizes.count - 1, room, False)]
        while True:
            parts, start, stop, room, loose = pending.pop()
            if start > stop:
                if not pending:
                    return tuple(parts[:-1])  # the end is no stage of the chain
                pending[-1][0].append(Region(tuple(parts)))
                continue
            kept_time = self.keeping(start, stop, loose=loose)[room]
            if kept_time <= self.columns[loose][stop][start, room + int(self.before[start])]:
                parts.append(Keep(start))
                left = room - int(self.saved[start]) + (int(self.freed[start]) if loose else 0)
                pending.append((parts, start + 1, stop, left, bool(self.sizes.loosens[start])))
                continue
            end = start + int(self.ends(start, stop, room).argmin())
            pending += [(parts, end + 1, stop, room - int(self.output[end]), True), ([], start, end, room, False)]

    def ends(self, start: int, stop: int, room: int) -> Floats:
        """The time by end of the first region, within ``room``: what ``dropping`` has for that many slots."""
        at = room + int(self.before[start])
        inside = np.array([self.columns[False][end][start, at] for end in range(start, stop)])
        times = inside + self.columns[True][stop][start + 1 : stop + 1, room]
        times += np.cumsum(self.forward[start:stop])
        times[self.rounded(self.sizes.drop(start, stop)) > room] = np.inf
        return times
