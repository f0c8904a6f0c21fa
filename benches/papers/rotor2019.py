"""Beaumont et al. 2019: optimal checkpointing of heterogeneous chains by dynamic programming."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from benches.papers import workspaces
from benches.papers.paper import Curve, Figure, Paper, Row, exact, trend, unverified
from benches.papers.stages import IDEAL, REAL, SAVED, execute
from impls import schedules
from impls.schedules import Plan, Stage, interpret

COUNT, SAYS = 20, {5: 250, 6: 125, 7: 105, 8: 96, 61: 60}
CHAIN = (IDEAL,) * COUNT
LOSS = Stage(forward=0, backward=0, output=0, saved=0, gradient=0, needs_output=False)
TRIALS = 60
SEGMENTS = (2, 3, 5, 9)


def least_time(chain: tuple[Stage, ...], budget: int) -> float:
    """The paper's recursion as it stands, for small integers; infinite when nothing fits. The input is outside the budget.

    As in the paper the loss is the last stage of the chain; here it takes no time and no memory.
    """
    chain = (*chain, LOSS)

    def drop(start: int, stop: int) -> int:
        inner = (chain[j - 1].output + chain[j].output + chain[j].passing_extra for j in range(start + 1, stop))
        return chain[stop].gradient + max(chain[start].output + chain[start].passing_extra, *inner, 0)

    def keep(start: int, stop: int) -> int:
        first = chain[start]
        return first.saved + max(chain[stop].gradient + first.keeping_extra, first.gradient + first.backward_extra)

    @functools.cache
    def least(start: int, stop: int, room: int) -> float:
        first, times = chain[start], [math.inf]
        if room >= keep(start, stop):
            rest = 0.0 if start == stop else least(start + 1, stop, room - first.saved)
            times.append(first.forward + rest + first.backward)
        if room >= drop(start, stop):
            for end in range(start, stop):
                once = sum(stage.forward for stage in chain[start : end + 1])
                times.append(once + least(end + 1, stop, room - chain[end].output) + least(start, end, room))
        return min(times)

    return least(0, len(chain) - 1, budget)


def drawn(generator: random.Random) -> tuple[tuple[Stage, ...], int]:
    """A heterogeneous chain of small integers, and a budget."""
    chain = []
    for _ in range(generator.randint(2, 7)):
        output, extra = generator.randint(1, 3), generator.randint(0, 2)
        chain.append(
            Stage(
                forward=generator.randint(0, 4),
                backward=generator.randint(0, 4),
                output=output,
                saved=output + generator.randint(0, 3),
                gradient=generator.randint(0, 3),
                keeping_extra=extra,
                passing_extra=extra,
                backward_extra=generator.randint(0, 2),
            )
        )
    return tuple(chain), generator.randint(4, 30)


def rows() -> Iterator[Row]:
    """The homogeneous chain at each budget, executed, and random chains against the recursion."""
    try:
        least: int | str = interpret(schedules.optimal(CHAIN, 4), CHAIN).peak
    except schedules.Infeasible:
        least = "infeasible"
    yield exact("n = 20, m = 4", says="infeasible", measured=least)
    for budget, says in SAYS.items():
        plan = schedules.optimal(CHAIN, budget)
        done, peak = execute(plan, COUNT), interpret(plan, CHAIN).peak
        if peak > budget or done.peak != interpret(plan, (REAL,) * COUNT).peak:
            raise RuntimeError(f"the plan for {budget} takes {peak}; executed it takes {done.peak}")
        note = (
            f"forward runs and twice the backward runs, counted; peak {peak}, executed {done.peak} with the gradient being made"
        )
        yield exact(f"n = 20, m = {budget}: time", says=says, measured=done.time, note=note)
    yield exact(
        "the recursion itself, m = 5, 6, 7, 8, 61",
        says=tuple(map(float, SAYS.values())),
        measured=tuple(least_time(CHAIN, budget) for budget in SAYS),
    )
    binomial = tuple(schedules.revolve(COUNT, budget - SAVED - 1) for budget in (5, 6, 7, 8))
    yield exact(
        "Revolve with m - 4 snapshots, m = 5, 6, 7, 8: as fast, then slower, in as much memory",
        says=((250, 5), (125, 6), (105, 7), (99, 8)),
        measured=tuple((execute(plan, COUNT).time, interpret(plan, CHAIN).peak) for plan in binomial),
        note="3n + t(n, m - 4), executed; the peak without the gradient being made",
    )
    yield _random()


def _random() -> Row:
    """Emitted plans in the interpreter against the recursion."""
    generator, equal, feasible = random.Random(0), 0, 0
    for _ in range(TRIALS):
        chain, budget = drawn(generator)
        predicted = least_time(chain, budget)
        try:
            plan = schedules.optimal(chain, budget, early_stop=False)
        except schedules.Infeasible:
            equal += math.isinf(predicted)
            continue
        account = interpret(plan, chain, early_stop=False)
        feasible += 1
        equal += account.time == predicted and account.peak <= budget
    return exact(
        f"replay of {TRIALS} random heterogeneous chains: time is the predicted cost, peak at most m",
        says=TRIALS,
        measured=equal,
        note=f"{feasible} have a plan, the others are known to have none",
    )


def pyramid() -> tuple[nn.Sequential, torch.Tensor]:
    """Convolutions that get narrower and deeper, and images for them."""
    torch.manual_seed(0)
    widths = (3, *(width for width in (8, 16, 32, 64) for _ in range(4)))
    stages: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        stride = 2 if before != after and before > 3 else 1
        stages.append(nn.Sequential(nn.Conv2d(before, after, 3, stride, 1), nn.Tanh()))
        stages.append(nn.GroupNorm(4, after))
    return nn.Sequential(*stages), torch.randn(8, 3, 64, 64).requires_grad_()


@dataclass(frozen=True)
class Pair:
    """The fastest equal segments within a budget and the plan for it: seconds foreseen and taken, and the plan's peak."""

    budget: int
    foreseen: tuple[float, float]
    taken: tuple[float, float]
    peak: int


@functools.cache
def pairs() -> tuple[Pair, ...]:
    """Plans of both kinds for a measured chain of convolutions, within what segments take of the allocator.

    Raises RuntimeError when one takes more than its budget.
    """
    model, images = pyramid()
    chain = workspaces.with_workspaces(schedules.measure(model, images, repeats=5), model, images)
    segments = {plan: interpret(plan, chain) for plan in (schedules.uniform(len(model), k) for k in range(1, len(model) + 1))}
    found = []
    for count in SEGMENTS:
        budget = segments[schedules.uniform(len(model), count)].peak
        best = min((one for one in segments if segments[one].peak <= budget), key=lambda one: segments[one].time)
        both = best, schedules.optimal(chain, budget)
        peaks = [workspaces.executed(model, plan, images) for plan in both]
        if max(peaks) > budget:
            raise RuntimeError(f"plans {', '.join(map(schedules.text, both))} took {peaks} bytes of {budget}")
        first, second = (interpret(plan, chain).time for plan in both)
        taken = [[_seconds(model, plan, images) for plan in both] for _ in range(7)]
        times = [min(times) for times in zip(*taken, strict=True)]
        found.append(Pair(budget, (first, second), (times[0], times[1]), peaks[1]))
    return tuple(found)


def _seconds(model: nn.Sequential, plan: Plan, images: torch.Tensor) -> float:
    begun = time.process_time()
    schedules.checkpoint_sequential(model, plan, images).sum().backward()
    return time.process_time() - begun


def more() -> Iterator[Row]:
    """A measured chain at equal memory, by time foreseen and taken."""
    foreseen, taken = (
        [one.foreseen[0] / one.foreseen[1] - 1 for one in pairs()],
        [one.taken[0] / one.taken[1] - 1 for one in pairs()],
    )
    yield trend(
        "a measured chain: at equal memory the optimal plan is never slower than the best segments",
        says="never",
        measured=_percent(taken),
        holds=min(taken) >= 0,
        note=f"throughput in CPU time, least of 7, 32 stages on the CPU, beside the fastest equal segments within what "
        f"{', '.join(map(str, SEGMENTS))} of them take; foreseen from measured stage times {_percent(foreseen)}",
    )
    yield trend(
        "its plans take no more of torch's allocator than they were made for, workspaces of convolutions included",
        says=tuple(one.budget for one in pairs()),
        measured=tuple(one.peak for one in pairs()),
        holds=all(one.peak <= one.budget for one in pairs()),
        note="bytes; gradients of weights not",
    )
    yield unverified(
        "ResNet, DenseNet, Inception on a 16 GB V100: throughput on average",
        says="+17.2 %",
        measured=_percent([statistics.mean(taken)]),
        note="the chain above on this machine's CPU: another model and device",
    )


def _percent(ratios: list[float]) -> str:
    return ", ".join(f"{100 * ratio:+.1f} %" for ratio in ratios)


def figures() -> Iterator[Figure]:
    """Time against memory, for the homogeneous chain and for the measured one."""
    budgets = tuple(range(5, 62))
    optimal = tuple(float(interpret(schedules.optimal(CHAIN, budget), CHAIN).time) for budget in budgets)
    sequential = [interpret(schedules.uniform(COUNT, k), CHAIN) for k in range(1, COUNT + 1)]
    binomial = tuple(range(5, 25))
    yield Figure(
        "rotor2019-homogeneous",
        "20 equal stages: time against memory",
        "memory m, units",
        "time (forward 1, backward 2)",
        (
            Curve(
                "recursion, as computed before",
                tuple(map(float, SAYS)),
                tuple(map(float, SAYS.values())),
                "paper",
                joined=False,
            ),
            Curve("optimal", tuple(map(float, budgets)), optimal),
            Curve(
                "Revolve", tuple(map(float, binomial)), tuple(float(60 + schedules.advances(COUNT, m - 4)) for m in binomial)
            ),
            Curve(
                "segments", tuple(float(one.peak) for one in sequential), tuple(one.time for one in sequential), joined=False
            ),
        ),
        log="x",
    )
    memory = tuple(one.budget / 2**20 for one in pairs())
    yield Figure(
        "rotor2019-measured",
        "Convolutions on the CPU: time against memory",
        "budget, MiB",
        "forward and backward, CPU ms",
        (
            Curve("segments, foreseen", memory, tuple(1000 * one.foreseen[0] for one in pairs()), joined=False),
            Curve("optimal, foreseen", memory, tuple(1000 * one.foreseen[1] for one in pairs()), joined=False),
            Curve("segments, taken", memory, tuple(1000 * one.taken[0] for one in pairs()), joined=False),
            Curve("optimal, taken", memory, tuple(1000 * one.taken[1] for one in pairs()), joined=False),
        ),
        note="The paper's own measurements are of other models on a GPU and were not at hand.",
    )


PAPER = Paper(
    "rotor2019",
    "Optimal checkpointing for heterogeneous chains",
    "Beaumont et al. 2019, arXiv 1911.13214",
    "`impls.schedules.optimal`: what it emits runs as nested regions on stages that save three units each, and what ran is "
    "counted; gradients equal plain's bit for bit. Memory is without the chain's input. A recursion written down from the "
    "paper and the interpreter of `impls.schedules` check it on random chains.",
    rows,
    more,
    figures,
)
