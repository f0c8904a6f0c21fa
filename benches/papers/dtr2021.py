"""Kirisame et al. 2021: Dynamic Tensor Rematerialization, with Checkmate's integer program (2020) as a lower bound."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch

from benches.papers import checkmate, dtr, replay
from benches.papers.paper import Curve, Figure, Paper, Row, exact, trend, unverified
from benches.papers.trace import Event, Trace, linear_chain, record
from benches.papers.traced_models import MODELS, Step, softplus_chain

SIZES = (16, 64, 256, 1024)
SMALL, OPTIMA = 8, {3: 31, 4: 21, 5: 19, 8: 16}
FRACTIONS = tuple(step / 20 for step in range(20, 4, -1))
MOST = 4


def budget_of(n: int) -> int:
    """The units of memory that a chain of ``n`` layers gets: 2 ⌈√n⌉ + 1."""
    return 2 * math.ceil(math.sqrt(n)) + 1


def chain(n: int) -> tuple[Trace, tuple[torch.Tensor, ...], int]:
    """A recorded chain of ``n`` layers with unit costs, its gradient, and the bytes of a unit."""
    trace, gradient = record(softplus_chain(n), cost=lambda *_: 1)
    return trace, tuple(gradient), trace.sizes[0]


def run(trace: Trace, events: tuple[Event, ...], budget: int, expected: tuple[torch.Tensor, ...]) -> replay.Executed:
    """Check a schedule and run it.

    Raises RuntimeError when an output is not ``expected`` to the last bit or is zero, or more was alive than foreseen.
    """
    checked, done = replay.check(trace, events, budget), replay.execute(trace, events)
    if not all(torch.equal(a, b) and a.any() for a, b in zip(done.outputs, expected, strict=True)):
        raise RuntimeError("what the schedule computed is not what was recorded")
    if done.live.peak != checked.peak:
        raise RuntimeError(f"{done.live.peak} bytes were alive, the schedule needs {checked.peak}")
    return done


def operations(n: int, budget: int, heuristic: str = "h_DTR") -> int:
    """Kernels of layers that run when a chain of ``n`` is executed as the runtime decides within ``budget`` units."""
    trace, gradient, unit = chain(n)
    done = run(trace, dtr.simulate(trace, budget * unit, heuristic).events, budget * unit, gradient)
    return done.live.kernels["softplus"] + done.live.kernels["softplus_backward"]


def rows() -> Iterator[Row]:
    """Chains with memory for everything, and the optima of a small one."""
    says = tuple(2 * n for n in SIZES[:3])
    yield exact(
        "chain of N = 16, 64, 256, budget N: 2N operations",
        says=says,
        measured=tuple(operations(n, n) for n in SIZES[:3]),
        note="kernels that ran",
    )
    trace, gradient, unit = chain(SMALL)
    for budget, least in OPTIMA.items():
        best = checkmate.optimum(linear_chain(SMALL), budget)
        if best is None:
            raise RuntimeError(f"the integer program found no schedule within {budget}")
        done = run(trace, best.events, budget * unit, gradient)
        kernels = done.live.kernels["softplus"] + done.live.kernels["softplus_backward"]
        yield exact(
            f"Checkmate, chain of {SMALL}, budget {budget}: least operations",
            says=least,
            measured=kernels,
            note="HiGHS; the schedule was executed",
        )


def more() -> Iterator[Row]:
    """Growth of the work on chains, by heuristic, and heuristics on recorded models."""
    measured = tuple(operations(n, budget_of(n)) for n in SIZES)
    yield trend(
        "chain, budget 2⌈√N⌉ + 1, h_DTR: O(N) operations; N = 16, 64, 256, 1024",
        says="at most 3N: 48, 192, 768, 3072",
        measured=measured,
        holds=all(count <= 3 * n for n, count in zip(SIZES, measured, strict=True)),
        note="kernels that ran",
    )
    found = tuple(simulated(n, "h_e*") for n in SIZES)
    yield trend(
        "the same, h_e*",
        says="at most 3.5N: 56, 224, 896, 3584",
        measured=found,
        holds=all(2 * count <= 7 * n for n, count in zip(SIZES, found, strict=True)),
        note="simulated",
    )
    ratios = tuple(round(simulated(n, "h_local") / n, 2) for n in SIZES)
    yield trend(
        "the same, h_local: operations per layer grow",
        says="growing",
        measured=ratios,
        note="simulated",
        holds=all(a < b for a, b in itertools.pairwise(ratios)),
    )
    yield trend(
        "h_DTR on a chain of 8 is never below the optimum",
        says="never",
        note="budgets 3, 4, 5, 8",
        measured=tuple(dtr.simulate(linear_chain(SMALL), budget, "h_DTR").cost for budget in OPTIMA),
        holds=all(dtr.simulate(linear_chain(SMALL), b, "h_DTR").cost >= least for b, least in OPTIMA.items()),
    )
    for name, make in MODELS.items():
        yield _least(name, make())


def simulated(n: int, heuristic: str) -> int:
    """Operations of a chain of ``n`` by the simulator alone, checked."""
    budget = budget_of(n)
    return replay.check(linear_chain(n), dtr.simulate(linear_chain(n), budget, heuristic).events, budget).cost


def overhead(trace: Trace, fraction: float, heuristic: str) -> float | None:
    """Cost within a fraction of the peak, as a ratio to the trace's; None when that does not fit or costs 4 times as much."""
    budget = int(trace.peak * fraction)
    try:
        events = dtr.simulate(trace, budget, heuristic, most=MOST).events
    except dtr.DoesNotFit:
        return None
    return replay.check(trace, events, budget).cost / trace.cost


def _least(name: str, step: Step) -> Row:
    """The least budget for each heuristic; the schedule of the first is executed at half of the peak."""
    trace, gradients = record(step)
    half = trace.peak // 2
    run(trace, dtr.simulate(trace, half, "h_DTR").events, half, tuple(gradients))
    cells = []
    for heuristic in dtr.HEURISTICS:
        fits = [fraction for fraction in FRACTIONS if overhead(trace, fraction, heuristic) is not None]
        cells.append(f"{heuristic} {min(fits):.0%}")
    return unverified(
        f"{name}: the least budget, of the peak, at under {MOST} times the cost",
        says="h_DTR needs least",
        measured="; ".join(cells),
        note=f"{len(trace.ops)} operators; at half of the peak h_DTR's schedule was "
        "executed: gradients equal to the last bit, as many bytes alive as foreseen",
    )


def figures() -> Iterator[Figure]:
    """Chains by length, the small chain by budget, recorded models by budget."""
    sizes = tuple(map(float, SIZES))
    lines = [
        Curve("2N, everything kept", sizes, (2.0,) * len(SIZES), "paper"),
        Curve("3N, Chen", sizes, (3.0,) * len(SIZES), "paper"),
    ]
    lines += [Curve(name, sizes, tuple(simulated(n, name) / n for n in SIZES)) for name in ("h_DTR", "h_e*", "h_local")]
    yield Figure(
        "dtr2021-chain",
        "DTR on a linear chain with 2⌈√N⌉ + 1 units of memory",
        "layers N",
        "operations per layer",
        tuple(lines),
        log="x",
    )
    budgets = tuple(map(float, range(3, SMALL + 1)))
    best = [checkmate.optimum(linear_chain(SMALL), int(budget)) for budget in budgets]
    small = [
        Curve(
            "Checkmate's program, as computed before",
            tuple(map(float, OPTIMA)),
            tuple(map(float, OPTIMA.values())),
            "paper",
            joined=False,
        ),
        Curve("integer program", budgets, tuple(float(one.cost) for one in best if one)),
    ]
    small += [
        Curve(name, budgets, tuple(float(dtr.simulate(linear_chain(SMALL), int(b), name).cost) for b in budgets))
        for name in ("h_DTR", "h_e*")
    ]
    yield Figure("dtr2021-checkmate", "A chain of 8 layers: work against memory", "budget, units", "operations", tuple(small))
    for name, make in MODELS.items():
        trace, _ = record(make())
        yield Figure(
            f"dtr2021-{name}",
            f"DTR on a recorded {name}: work against memory",
            "budget, fraction of the peak",
            "cost, ratio to no eviction",
            tuple(_sweep(trace, heuristic) for heuristic in dtr.HEURISTICS),
            note="A curve ends where the heuristic runs out of memory or costs over 4 times as much. The paper's own "
            "curves were not at hand.",
        )


def _sweep(trace: Trace, heuristic: str) -> Curve:
    points = [(fraction, cost) for fraction in FRACTIONS if (cost := overhead(trace, fraction, heuristic)) is not None]
    return Curve(heuristic, tuple(x for x, _ in points), tuple(y for _, y in points))


PAPER = Paper(
    "dtr2021",
    "Dynamic tensor rematerialization",
    "Kirisame et al. 2021, arXiv 2006.09616; Jain et al. 2020, arXiv 1910.02653",
    "Operators of forward and backward are recorded and a runtime simulator decides what to evict; its schedules are checked "
    "by an interpreter of their own and executed with the recorded operators. Convention: what the program released goes at "
    "once; staleness is the number of operators since a value was last read or made; of equals the first in memory goes; the "
    "chain's input and the loss gradient are outside the budget; a model's operator costs the bytes it moves, or its floating "
    "point operations / 50 when that is more.",
    rows,
    more,
    figures,
)
