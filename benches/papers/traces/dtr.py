"""Dynamic Tensor Rematerialization: a runtime that evicts values when memory is short and computes them again on demand.

The convention: a value that the program released is evicted at once; when it is needed again on the way to another one,
it goes as soon as that one is there. Staleness is the number of operators run since a value was last read or made. Ties
go to the value that came to memory first. The evicted neighbourhood of a value are the evicted values that can be
reached from it through evicted ones alone, by what they were made from and by what was made from them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from benches.papers.traces.trace import Event, Trace


class DoesNotFit(RuntimeError):
    """A budget within which an operator cannot run, whatever is evicted, or the run costs more than was allowed."""


@dataclass(frozen=True)
class Candidate:
    """What a heuristic may look at: own cost, cost of the evicted neighbourhood, bytes, staleness."""

    cost: int
    neighbourhood: Callable[[], int]
    size: int
    staleness: int


Heuristic = Callable[[Candidate], float]


def _ratio(value: float, by: float) -> float:
    return value / by if by else math.inf


HEURISTICS: dict[str, Heuristic] = {
    "h_DTR": lambda c: _ratio(c.cost + c.neighbourhood(), c.size * c.staleness),
    "h_local": lambda c: _ratio(c.cost, c.size * c.staleness),
    "LRU": lambda c: _ratio(1, c.staleness),
    "size": lambda c: 1 / c.size,
    "h_e*": lambda c: c.cost + c.neighbourhood(),
}


@dataclass(frozen=True)
class Run:
    """What the runtime did: computations and drops in order, their cost, and the most that was in memory."""

    events: tuple[Event, ...]
    cost: int
    peak: int


def simulate(trace: Trace, budget: int, heuristic: str, *, most: int = 20) -> Run:
    """Run ``trace`` within ``budget`` (in the unit of its sizes), evicting the value with the least ``heuristic``.

    Raises ValueError for a heuristic that is not in HEURISTICS, DoesNotFit when an operator has no room or when the run
    costs more than ``most`` times the trace: a bad heuristic can take time exponential in its length.
    """
    if heuristic not in HEURISTICS:
        raise ValueError(f"heuristic is {heuristic!r}; it must be one of {', '.join(HEURISTICS)}")
    return _Runtime(trace, budget, HEURISTICS[heuristic], most * trace.cost).run()


class _Runtime:
    def __init__(self, trace: Trace, budget: int, heuristic: Heuristic, most: int) -> None:
        self.trace, self.budget, self.heuristic, self.most = trace, budget, heuristic, most
        self.makers = trace.makers
        self.readers: list[list[int]] = [[] for _ in trace.sizes]  # operators that have run
        self.touched: dict[int, int] = {}  # value in memory -> when it was last read or made
        self.released: set[int] = set()
        self.pinned: Counter[int] = Counter()
        self.clock = self.used = self.peak = self.cost = 0
        self.events: list[Event] = []

    def run(self) -> Run:
        for kind, index in self.trace.events:
            if kind == "compute":
                self.compute(index)
                for value in set(self.trace.ops[index].reads):
                    self.readers[value].append(index)
            else:
                self.released.add(index)
                self.drop(index)
        self.pinned.update(self.trace.results)
        for value in sorted(self.trace.results):
            self.compute(self.makers[value], only_missing=value)
        return Run(tuple(self.events), self.cost, self.peak)

    def compute(self, index: int, only_missing: int | None = None) -> None:
        """Run an operator, and before it whatever makes the values that it reads and that are not in memory."""
        if only_missing in self.touched:
            return
        stack = [index]
        self.pinned.update(self.trace.ops[index].reads)
        while stack:
            op = self.trace.ops[stack[-1]]
            missing = next((value for value in op.reads if value not in self.touched), None)
            if missing is not None:
                stack.append(self.makers[missing])
                self.pinned.update(self.trace.ops[stack[-1]].reads)
                continue
            self.execute(stack.pop())

    def execute(self, index: int) -> None:
        op = self.trace.ops[index]
        room = sum(self.trace.sizes[value] for value in op.makes)  # all of them, also what is in memory already
        self.make_room(room, op.name)
        self.peak = max(self.peak, self.used + room)
        self.clock += 1
        self.cost += op.cost
        if self.cost > self.most:
            raise DoesNotFit(f"a budget of {self.budget} costs more than {self.most}")
        self.events.append(Event("compute", index))
        self.pinned.subtract(op.reads)
        for value in op.reads:
            self.touched[value] = self.clock
        for value in op.makes:
            if value not in self.touched:
                self.used += self.trace.sizes[value]
            self.touched[value] = self.clock
        for value in (*op.reads, *op.makes):
            if value in self.released and not self.pinned[value]:
                self.drop(value)

    def make_room(self, room: int, name: str) -> None:
        while self.used + room > self.budget:
            candidates = [value for value in self.touched if not self.pinned[value] and self.trace.sizes[value]]
            if not candidates:
                raise DoesNotFit(f"{name} needs {self.used + room}, the budget is {self.budget}")
            self.drop(min(candidates, key=self.score))  # of equals the first, and they are in order of arrival

    def score(self, value: int) -> float:
        cost = self.trace.ops[self.makers[value]].cost
        stale = self.clock - self.touched[value]
        return self.heuristic(Candidate(cost, lambda: self.neighbourhood(value), self.trace.sizes[value], stale))

    def neighbourhood(self, value: int) -> int:
        """The cost of the operators that make the evicted neighbourhood."""
        ops: set[int] = set()
        for step in (self.made_from, self.made_to):
            seen, stack = {value}, [value]
            while stack:
                near = [one for one in step(stack.pop()) if one not in self.touched and one not in seen]
                seen.update(near)
                stack += near
                ops.update(self.makers[one] for one in near)
        return sum(self.trace.ops[op].cost for op in ops)

    def made_from(self, value: int) -> tuple[int, ...]:
        return self.trace.ops[self.makers[value]].reads

    def made_to(self, value: int) -> list[int]:
        return [made for reader in self.readers[value] for made in self.trace.ops[reader].makes]

    def drop(self, value: int) -> None:
        if value in self.touched:
            del self.touched[value]
            self.used -= self.trace.sizes[value]
            self.events.append(Event("drop", value))
