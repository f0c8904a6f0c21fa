"""Kirisame et al. 2021: Dynamic Tensor Rematerialization, with Checkmate's integer program (2020) as a lower bound."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator

import torch

from benches.papers.models.traced_models import MODELS, softplus_chain
from benches.papers.paper import Claim, Curve, Figure, Found, Paper, Said, derived, trend
from benches.papers.traces import checkmate, dtr, execution
from benches.papers.traces.trace import Event, Trace, linear_chain, record

SIZES = (16, 64, 256, 1024)
BEYOND = 1600  # where h_DTR takes more than 3N
SMALL, OPTIMA = 8, {3: 31, 4: 21, 5: 19, 8: 16}
FRACTIONS = tuple(step / 20 for step in range(20, 4, -1))
MOST = 2
THEOREM = Said("O(N) operations with h_e* and a budget of Ω(√N)", "theorem 3.1")
LINEAR = Said("O(N) operations with a budget of Ω(√N)", "abstract")
RICHER = Said("heuristics that know more of chains of rematerializations, as h_DTR does, run on lower budgets", "section 4.2")
CHECKMATE = Said("an integer program solves for the optimal schedule", "abstract of Jain et al.")


def budget_of(n: int) -> int:
    """The units of memory that a chain of ``n`` layers gets: 2 ⌈√n⌉ + 1."""
    return 2 * math.ceil(math.sqrt(n)) + 1


def chain(n: int) -> tuple[Trace, tuple[torch.Tensor, ...], int]:
    """A recorded chain of ``n`` layers with unit costs, its gradient, and the bytes of a unit."""
    trace, gradient = record(softplus_chain(n), cost=lambda *_: 1)
    return trace, tuple(gradient), trace.sizes[0]


def run(trace: Trace, events: tuple[Event, ...], budget: int, expected: tuple[torch.Tensor, ...]) -> execution.Executed:
    """Check a schedule and run it.

    Raises RuntimeError when an output is not ``expected`` to the last bit or is zero, or more was alive than foreseen.
    """
    checked, done = execution.check(trace, events, budget), execution.execute(trace, events)
    if not all(torch.equal(a, b) and a.any() for a, b in zip(done.outputs, expected, strict=True)):
        raise RuntimeError("what the schedule computed is not what was recorded")
    if done.live.peak != checked.peak:
        raise RuntimeError(f"{done.live.peak} bytes were alive, the schedule needs {checked.peak}")
    return done


@functools.cache
def operations(n: int, budget: int, heuristic: str = "h_DTR") -> int:
    """Kernels of layers that run when a chain of ``n`` is executed as the runtime decides within ``budget`` units."""
    trace, gradient, unit = chain(n)
    done = run(trace, dtr.simulate(trace, budget * unit, heuristic).events, budget * unit, gradient)
    return done.live.kernels["softplus"] + done.live.kernels["softplus_backward"]


def claims() -> Iterator[Claim]:
    """Chains with memory for everything, and the optima of a small one."""
    yield derived(
        "chain of N = 16, 64, 256, budget N: 2N operations",
        expected=tuple(2 * n for n in SIZES[:3]),
        measure=lambda: tuple(operations(n, n) for n in SIZES[:3]),
        note="kernels that ran",
    )
    for budget, least in OPTIMA.items():
        yield derived(
            f"Checkmate, chain of {SMALL}, budget {budget}: least operations",
            says=CHECKMATE,
            expected=least,
            measure=functools.partial(optimal, budget),
            note="kernels that ran: the schedule that HiGHS found was executed",
        )


@functools.cache
def optimal(budget: int) -> int:
    """Kernels of layers that run when the integer program's schedule of the small chain is executed."""
    trace, gradient, unit = chain(SMALL)
    best = checkmate.optimum(linear_chain(SMALL), budget)
    if best is None:
        raise RuntimeError(f"the integer program found no schedule within {budget}")
    done = run(trace, best.events, budget * unit, gradient)
    return done.live.kernels["softplus"] + done.live.kernels["softplus_backward"]


def more() -> Iterator[Claim]:
    """Growth of the work on chains, by heuristic, and heuristics on recorded models."""
    which = f"chain, budget 2⌈√N⌉ + 1; N = {', '.join(map(str, SIZES))}"
    ours = "at these sizes; the constant is ours, and no bound for larger N"
    yield trend(
        f"h_e*: O(N) operations; {which}",
        says=THEOREM,
        expected=f"at most 3.5N {ours}",
        measure=lambda: _bounded(tuple(simulated(n, "h_e*") for n in SIZES), 3.5),
        note="simulated. Simulated once for N = 8192, which takes minutes: 29457, 3.60N",
    )
    yield trend(
        f"h_DTR: O(N) operations; {which}",
        says=LINEAR,
        expected=f"at most 3N {ours}",
        measure=lambda: _bounded(tuple(operations(n, budget_of(n)) for n in SIZES), 3),
        note="kernels that ran",
    )
    yield derived(
        f"h_DTR takes more than 3N for N = {BEYOND}",
        expected=4816,
        measure=lambda: Found(simulated(BEYOND, "h_DTR"), f"simulated; {simulated(BEYOND, 'h_DTR') / BEYOND:.2f}N"),
    )
    yield trend(
        f"h_local: operations per layer grow; {which}",
        expected="growing",
        measure=_growing,
        note="simulated",
    )
    yield trend(
        f"h_DTR is never below the optimum; chain of {SMALL}, budgets {', '.join(map(str, OPTIMA))}",
        says=CHECKMATE,
        expected=f"at least {', '.join(map(str, OPTIMA.values()))}",
        measure=_above,
        note="simulated",
    )
    for name in MODELS:
        yield trend(
            f"{name}: of the heuristics h_DTR runs within the least budget, at under {MOST} times the cost",
            says=RICHER,
            expected="h_DTR at most what others need",
            measure=functools.partial(_least, name),
            note=f"parts of the peak, {min(FRACTIONS):.0%} the least that was tried, simulated; the paper's models are larger",
        )


def _bounded(counts: tuple[int, ...], most: float) -> Found:
    told = ", ".join(f"{count} ({count / n:.2f}N)" for n, count in zip(SIZES, counts, strict=True))
    return Found(told, holds=all(count <= most * n for n, count in zip(SIZES, counts, strict=True)))


def _growing() -> Found:
    ratios = tuple(simulated(n, "h_local") / n for n in SIZES)
    return Found(ratios, holds=all(a < b for a, b in itertools.pairwise(ratios)))


def _above() -> Found:
    costs = tuple(dtr.simulate(linear_chain(SMALL), budget, "h_DTR").cost for budget in OPTIMA)
    return Found(costs, holds=all(cost >= least for cost, least in zip(costs, OPTIMA.values(), strict=True)))


@functools.cache
def simulated(n: int, heuristic: str) -> int:
    """Operations of a chain of ``n`` by the simulator alone, checked."""
    budget = budget_of(n)
    return execution.check(linear_chain(n), dtr.simulate(linear_chain(n), budget, heuristic).events, budget).cost


def overhead(trace: Trace, fraction: float, heuristic: str) -> float | None:
    """Cost within a fraction of the peak, as a ratio to the trace's; None if that does not fit or costs over MOST times it."""
    budget = int(trace.peak * fraction)
    try:
        events = dtr.simulate(trace, budget, heuristic, most=MOST).events
    except dtr.DoesNotFit:
        return None
    return execution.check(trace, events, budget).cost / trace.cost


def _least(name: str) -> Found:
    """The least budget for each heuristic; the schedule of the first is executed at half of the peak."""
    trace, gradients = record(MODELS[name]())
    half = trace.peak // 2
    run(trace, dtr.simulate(trace, half, "h_DTR").events, half, tuple(gradients))
    least = {
        heuristic: min((part for part in FRACTIONS if overhead(trace, part, heuristic) is not None), default=math.inf)
        for heuristic in dtr.HEURISTICS
    }
    return Found(
        "; ".join(f"{heuristic} {part:.0%}" for heuristic, part in least.items()),
        f"{len(trace.ops)} operators; at half of the peak h_DTR's schedule was executed: gradients equal to the last bit, as "
        "many bytes alive as foreseen",
        holds=least["h_DTR"] == min(least.values()) < math.inf,
    )


def figures() -> Iterator[Figure]:
    """Chains by length, the small chain by budget, recorded models by budget."""
    sizes = tuple(map(float, SIZES))
    lines = [
        Curve("2N, everything kept", sizes, (2.0,) * len(SIZES), "formula"),
        Curve("3N, √N segments of Chen et al.", sizes, (3.0,) * len(SIZES), "formula"),
        Curve("h_DTR, executed", sizes, tuple(operations(n, budget_of(n)) / n for n in SIZES), "measured"),
    ]
    lines += [Curve(name, sizes, tuple(simulated(n, name) / n for n in SIZES), "simulated") for name in ("h_e*", "h_local")]
    yield Figure(
        "dtr2021-chain",
        "DTR on a linear chain with 2⌈√N⌉ + 1 units of memory",
        "layers N",
        "operations per layer",
        tuple(lines),
        log="x",
    )
    budgets = tuple(map(float, range(3, SMALL + 1)))
    best = tuple(float(optimal(int(budget))) for budget in budgets)
    small = [Curve("integer program, executed", budgets, best, "measured")]
    for name in ("h_DTR", "h_e*"):
        costs = tuple(float(dtr.simulate(linear_chain(SMALL), int(budget), name).cost) for budget in budgets)
        small.append(Curve(name, budgets, costs, "simulated"))
    yield Figure("dtr2021-checkmate", "A chain of 8 layers: work against memory", "budget, units", "operations", tuple(small))
    for name, make in MODELS.items():
        trace, _ = record(make())
        yield Figure(
            f"dtr2021-{name}",
            f"DTR on a recorded {name}: work against memory",
            "budget, fraction of the peak",
            "cost, ratio to no eviction",
            tuple(_sweep(trace, heuristic) for heuristic in dtr.HEURISTICS),
            note="Points are missing where the heuristic runs out of memory or costs over "
            f"{MOST} times as much; lines join those that there are.",
        )


def _sweep(trace: Trace, heuristic: str) -> Curve:
    points = [(fraction, cost) for fraction in FRACTIONS if (cost := overhead(trace, fraction, heuristic)) is not None]
    return Curve(heuristic, tuple(x for x, _ in points), tuple(y for _, y in points), "simulated")


PAPER = Paper(
    "dtr2021",
    "Dynamic tensor rematerialization",
    "Kirisame et al. 2021, arXiv 2006.09616; Jain et al. 2020, arXiv 1910.02653",
    "Operators of forward and backward are recorded and a runtime simulator decides what to evict; its schedules are checked "
    "by an interpreter of their own and executed with the recorded operators. Convention: what the program released goes at "
    "once; staleness is the number of operators since a value was last read or made; of equals the first in memory goes; the "
    "chain's input and the loss gradient are outside the budget; a model's operator costs the bytes it moves, or its floating "
    "point operations / 50 when that is more.",
    claims,
    more,
    figures,
)
