"""Checkmate's integer program: the least cost of any schedule of a small trace within a memory budget.

Stage t is the one in which operator t runs for the first time. R[t, i]: operator i runs in stage t; S[t, i]: its value is
in memory when stage t starts; U[t, k]: memory after operator k of stage t; F[t, k, i]: value i is freed after operator k,
because nothing later in the stage and no later stage wants it. Source: Jain et al. 2020, arXiv 1910.02653.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from benches.papers.traces.trace import Event, Trace

Key = tuple[str, int, int] | tuple[str, int, int, int]


@dataclass(frozen=True)
class Optimum:
    """The least cost and a schedule that has it."""

    cost: int
    events: tuple[Event, ...]


class _Program:
    """Variables by key, and constraints low <= sum of coefficient x variable <= high."""

    def __init__(self) -> None:
        self.index: dict[Key, int] = {}
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def constrain(self, terms: Sequence[tuple[Key, float]], low: float, high: float) -> None:
        for key, coefficient in terms:
            column = self.index.setdefault(key, len(self.index))
            self.entries.append((len(self.low), column, coefficient))
        self.low.append(low)
        self.high.append(high)

    def solve(self, costs: Mapping[Key, int], budget: int, seconds: float) -> dict[Key, int] | None:
        rows, columns, values = zip(*self.entries, strict=True)
        shape = len(self.low), len(self.index)
        matrix = coo_array((values, (rows, columns)), shape=shape).tocsr()  # sums entries of the same place
        memory = np.array([key[0] == "U" for key in self.index])
        objective = np.array([float(costs.get(key, 0)) for key in self.index])
        result = milp(
            objective,
            constraints=LinearConstraint(matrix, self.low, self.high),
            integrality=np.where(memory, 0, 1),
            bounds=Bounds(0, np.where(memory, budget, 1)),
            options={"time_limit": seconds},
        )
        if result.status == 2:
            return None
        if result.status != 0:
            raise TimeoutError(f"the solver did not end within {seconds} s: {result.message}")
        return {key: round(result.x[column]) for key, column in self.index.items()}


def optimum(trace: Trace, budget: int, *, seconds: float = 120) -> Optimum | None:
    """The cheapest schedule within ``budget``, None when there is none.

    Raises ValueError unless each operator makes one value and the last one's is the only result, TimeoutError when the
    solver takes longer than ``seconds``.
    """
    count = len(trace.ops)
    if any(op.makes != (index,) for index, op in enumerate(trace.ops)) or trace.results != {count - 1}:
        raise ValueError("every operator must make one value, and the last one's must be the only result")
    program = _Program()
    for t in range(count):
        _dependencies(program, trace, t)
        _memory(program, trace, t)
        _cuts(program, trace, t)
    costs: dict[Key, int] = {("R", t, i): trace.ops[i].cost for t in range(count) for i in range(t + 1)}
    solution = program.solve(costs, budget, seconds)
    if solution is None:
        return None
    return Optimum(sum(cost for key, cost in costs.items() if solution[key]), _schedule(trace, solution))


def _dependencies(program: _Program, trace: Trace, t: int) -> None:
    program.constrain([(("R", t, t), 1)], 1, 1)
    for i in range(t + 1):
        for read in trace.ops[i].reads:  # what it reads is made in this stage or was there
            there: list[tuple[Key, float]] = [(("S", t, read), -1)] if read < t else []
            program.constrain([(("R", t, i), 1), (("R", t, read), -1), *there], -math.inf, 0)
    for i in range(t):  # what is there was made in the stage before or was there before it
        before: list[tuple[Key, float]] = [(("S", t - 1, i), -1)] if i < t - 1 else []
        program.constrain([(("S", t, i), 1), (("R", t - 1, i), -1), *before], -math.inf, 0)


def _cuts(program: _Program, trace: Trace, t: int) -> None:
    """Constraints that some cheapest schedule satisfies; with them the solver is 30 times faster."""
    for i in range(t):
        program.constrain([(("S", t, i), 1), (("R", t, i), 1)], -math.inf, 1)  # what is in memory is not run again
        users: list[tuple[Key, float]] = [(("R", t, j), -1) for j in range(i + 1, t + 1) if i in trace.ops[j].reads]
        if t + 1 < len(trace.ops):
            users.append((("S", t + 1, i), -1))
        program.constrain([(("R", t, i), 1), *users], -math.inf, 0)  # what nobody wants is not run again


def _memory(program: _Program, trace: Trace, t: int) -> None:
    stored: list[tuple[Key, float]] = [(("S", t, i), -trace.sizes[i]) for i in range(t)]
    for k in range(t + 1):
        before = stored if k == 0 else [(("U", t, k - 1), -1.0), *_freed(program, trace, t, k - 1)]
        program.constrain([(("U", t, k), 1), (("R", t, k), -trace.sizes[k]), *before], 0, 0)


def _freed(program: _Program, trace: Trace, t: int, k: int) -> list[tuple[Key, float]]:
    """What memory gets back after operator k of stage t."""
    terms: list[tuple[Key, float]] = []
    for value in {*trace.ops[k].reads, k}:
        free: Key = ("F", t, k, value)
        program.constrain([(free, 1), (("R", t, k), -1)], -math.inf, 0)
        later = [j for j in range(k + 1, t + 1) if value in trace.ops[j].reads]
        for j in later:
            program.constrain([(free, 1), (("R", t, j), 1)], -math.inf, 1)
        if t + 1 < len(trace.ops):
            program.constrain([(free, 1), (("S", t + 1, value), 1)], -math.inf, 1)
        terms.append((free, trace.sizes[value]))
    return terms


def _schedule(trace: Trace, solution: Mapping[Key, int]) -> tuple[Event, ...]:
    """The solution as computations and drops: a value goes once neither its stage nor the next wants it."""
    events: list[Event] = []
    memory: set[int] = set()
    count = len(trace.ops)
    for t in range(count):
        for k in range(t + 1):
            if not solution["R", t, k]:
                continue
            events.append(Event("compute", k))
            memory.add(k)
            wanted = {read for j in range(k + 1, t + 1) if solution["R", t, j] for read in trace.ops[j].reads}
            wanted |= {i for i in range(t + 1) if solution["S", t + 1, i]} if t + 1 < count else {count - 1}
            events += [Event("drop", value) for value in sorted(memory - wanted)]
            memory &= wanted
    return tuple(events)
