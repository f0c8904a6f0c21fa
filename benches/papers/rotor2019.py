"""Beaumont et al. 2019: optimal checkpointing of heterogeneous chains by dynamic programming."""

from __future__ import annotations

import functools
import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from benches.papers.meters import workspaces
from benches.papers.models.stages import IDEAL, REAL, SAVED, execute
from benches.papers.paper import Claim, Curve, Figure, Found, Paper, Said, derived, shown, trend
from impls import schedules
from impls.schedules import Plan, Stage, interpret

COUNT, TIMES = 20, {5: 250, 6: 125, 7: 105, 8: 96, 61: 60}
CHAIN = (IDEAL,) * COUNT
LOSS = Stage(forward=0, backward=0, output=0, saved=0, gradient=0, needs_output=False)
TRIALS = 60
SEGMENTS = (2, 3, 5, 9)
ROUNDS = 7
CODE = "_compute_table of the authors' rotor, as ColossalAI has it in ckpt_solver_rotor.py"
OPTIMAL = Said("an algorithm that computes the optimal sequence for a memory limit", "abstract")


def least_time(chain: tuple[Stage, ...], budget: int) -> float:
    """The recursion by itself, for small integers; infinite when nothing fits. The input is outside the budget.

    As in rotor the loss is the last stage of the chain; here it takes no time and no memory.
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


def claims() -> Iterator[Claim]:
    """The homogeneous chain at each budget, executed, and random chains against the recursion."""
    yield derived(f"n = {COUNT}, m = 4: no plan", says=OPTIMAL, expected="infeasible", measure=_below)
    for budget, expected in TIMES.items():
        yield derived(
            f"n = {COUNT}, m = {budget}: least time",
            says=OPTIMAL,
            expected=expected,
            measure=functools.partial(_executed, budget),
        )
    yield derived(
        f"the recursion itself, m = {', '.join(map(str, TIMES))}",
        says=Said("the cheaper of keeping a stage, and of passing a region to some stage and running it again", CODE),
        expected=tuple(map(float, TIMES.values())),
        measure=lambda: tuple(least_time(CHAIN, budget) for budget in TIMES),
        note="that code has the same times for one unit more: it counts the gradient that a stage makes beside the one it gets",
    )
    yield derived(
        "Revolve with m - 4 snapshots, m = 5, 6, 7, 8: as fast, then slower, in as much memory",
        expected=((250, 5), (125, 6), (105, 7), (99, 8)),
        measure=_binomial,
        note="3n + t(n, m - 4), executed; the peak without the gradient being made",
    )
    yield derived(
        f"replay of {TRIALS} random heterogeneous chains: time is the predicted cost, peak at most m",
        says=OPTIMAL,
        expected=TRIALS,
        measure=interpret_random_chains,
    )


def _below() -> int | str:
    try:
        return interpret(schedules.optimal(CHAIN, 4), CHAIN).peak
    except schedules.Infeasible:
        return "infeasible"


@functools.cache
def _executed(budget: int) -> Found:
    plan = schedules.optimal(CHAIN, budget)
    done, peak = execute(plan, COUNT), interpret(plan, CHAIN).peak
    if peak > budget or done.peak != interpret(plan, (REAL,) * COUNT).peak:
        raise RuntimeError(f"the plan for {budget} takes {peak}; executed it takes {done.peak}")
    return Found(
        done.time,
        f"forward runs and twice the backward runs, counted; peak {peak}, executed {done.peak} with the gradient being made",
    )


def _binomial() -> tuple[tuple[int, int], ...]:
    plans = (schedules.revolve(COUNT, budget - SAVED - 1) for budget in (5, 6, 7, 8))
    return tuple((execute(plan, COUNT).time, interpret(plan, CHAIN).peak) for plan in plans)


def interpret_random_chains() -> Found:
    """How many emitted plans the interpreter finds to be what the recursion predicts: a time, or that there is none."""
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
    return Found(equal, f"{feasible} have a plan, the others are known to have none")


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
    """The fastest equal segments within a budget and the plan for it: seconds foreseen and by round, and bytes at the peak."""

    budget: int
    foreseen: tuple[float, float]
    rounds: tuple[tuple[float, float], ...]
    peaks: tuple[int, int]

    @property
    def fits(self) -> bool:
        """Whether both took no more than the budget, without which their times say nothing."""
        return max(self.peaks) <= self.budget

    @property
    def taken(self) -> tuple[float, float]:
        """The least seconds of any round."""
        segments, optimal = zip(*self.rounds, strict=True)
        return min(segments), min(optimal)

    @property
    def slower(self) -> bool:
        """Whether the plan took longer than the segments in every round, which by chance happens once in 2 ** ROUNDS times."""
        return all(optimal > segments for segments, optimal in self.rounds)


@functools.cache
def pairs() -> tuple[Pair, ...]:
    """Plans of both kinds for a measured chain of convolutions, made for what segments take of the allocator."""
    model, images = pyramid()
    chain = workspaces.with_workspaces(timed(schedules.measure(model, images), model, images), model, images)
    segments = {plan: interpret(plan, chain) for plan in (schedules.uniform(len(model), k) for k in range(1, len(model) + 1))}
    found = []
    for count in SEGMENTS:
        budget = segments[schedules.uniform(len(model), count)].peak
        best = min((one for one in segments if segments[one].peak <= budget), key=lambda one: segments[one].time)
        both = best, schedules.optimal(chain, budget)
        peaks = workspaces.executed(model, both[0], images), workspaces.executed(model, both[1], images)
        first, second = (interpret(plan, chain).time for plan in both)
        rounds = tuple((_seconds(model, both[0], images), _seconds(model, both[1], images)) for _ in range(ROUNDS))
        found.append(Pair(budget, (first, second), rounds, peaks))
    return tuple(found)


def timed(chain: tuple[Stage, ...], functions: nn.Sequential, example: torch.Tensor) -> tuple[Stage, ...]:
    """Stages with their least seconds of CPU time of ROUNDS rounds, the clock by which plans are timed as well.

    ``schedules.measure`` takes the time that passes, in which on a busy machine others run.
    """
    laps = [list(_laps(functions, example)) for _ in range(ROUNDS)]
    least = [tuple(map(min, zip(*those, strict=True))) for those in zip(*laps, strict=True)]
    return tuple(replace(stage, forward=one[0], backward=one[1]) for stage, one in zip(chain, least, strict=True))


def _laps(functions: nn.Sequential, example: torch.Tensor) -> Iterator[tuple[float, float]]:
    """Seconds of forward and backward, stage by stage."""
    value = example
    for function in functions:
        value = value.detach().requires_grad_()
        begun = time.process_time()
        output = function(value)
        between = time.process_time()
        output.backward(torch.ones_like(output))
        yield between - begun, time.process_time() - between
        value = output


def _seconds(model: nn.Sequential, plan: Plan, images: torch.Tensor) -> float:
    begun = time.process_time()
    schedules.checkpoint_sequential(model, plan, images).sum().backward()
    return time.process_time() - begun


def more() -> Iterator[Claim]:
    """A measured chain at equal memory, by time foreseen and taken."""
    yield trend(
        "a measured chain: at equal memory the optimal plan is no slower than the best segments",
        says=Said("consistently outperforms existing checkpointing", "abstract"),
        expected=f"at no budget slower in each of {ROUNDS} rounds, both within the budget",
        measure=_faster,
        note=f"throughput in CPU time, least of {ROUNDS} rounds in turns, 32 stages on the CPU, beside the fastest equal "
        f"segments within what {', '.join(map(str, SEGMENTS))} of them take",
    )
    yield trend(
        "its plans take no more of torch's allocator than they were made for, workspaces of convolutions included",
        measure=_within,
        note="bytes; gradients of weights not",
    )
    yield shown(
        "ResNet, DenseNet, Inception on a 16 GB V100: throughput on average",
        says=Said("+17.2 %"),
        measure=lambda: _percent([statistics.mean(_gains("taken"))]),
        note="the chain above on this machine's CPU: another model and device",
    )


def _gains(which: str) -> list[float]:
    """How much more throughput the plan has than the segments, as a part."""
    return [first / second - 1 for first, second in (getattr(one, which) for one in pairs())]


def _faster() -> Found:
    told = f"foreseen from measured stage times {_percent(_gains('foreseen'))}"
    return Found(_percent(_gains("taken")), told, holds=all(one.fits and not one.slower for one in pairs()))


def _within() -> Found:
    value = ", ".join(f"{one.peaks[1]} of {one.budget}" for one in pairs())
    return Found(value, holds=all(one.peaks[1] <= one.budget for one in pairs()))


def _percent(ratios: list[float]) -> str:
    return ", ".join(f"{100 * ratio:+.1f} %" for ratio in ratios)


def figures() -> Iterator[Figure]:
    """Time against memory, for the homogeneous chain and for the measured one."""
    budgets = tuple(range(5, 62))
    optimal = tuple(float(interpret(schedules.optimal(CHAIN, budget), CHAIN).time) for budget in budgets)
    sequential = [interpret(schedules.uniform(COUNT, k), CHAIN) for k in range(1, COUNT + 1)]
    binomial = tuple(range(5, 25))
    revolve = tuple(float(3 * COUNT + schedules.advances(COUNT, m - 4)) for m in binomial)
    peaks, times = tuple(float(one.peak) for one in sequential), tuple(one.time for one in sequential)
    executed = tuple(float(_executed(budget).value) for budget in TIMES)
    yield Figure(
        "rotor2019-homogeneous",
        "20 equal stages: time against memory",
        "memory m, units",
        "time (forward 1, backward 2)",
        (
            Curve("Revolve, 3n + t(n, m - 4)", tuple(map(float, binomial)), revolve, "formula"),
            Curve("optimal", tuple(map(float, budgets)), optimal, "computed"),
            Curve("segments", peaks, times, "computed", joined=False),
            Curve("optimal, executed", tuple(map(float, TIMES)), executed, "measured", joined=False),
        ),
        log="x",
    )
    memory = tuple(one.budget / 2**20 for one in pairs())
    both = {"foreseen": "computed", "taken": "measured"}
    yield Figure(
        "rotor2019-measured",
        "Convolutions on the CPU: time against memory",
        "budget, MiB",
        "forward and backward, CPU ms",
        tuple(
            Curve(f"{name}, {which}", memory, tuple(1000 * getattr(one, which)[place] for one in pairs()), kind, joined=False)
            for which, kind in both.items()
            for place, name in enumerate(("segments", "optimal"))
        ),
        note="Foreseen: the CPU times of stages, measured one by one, added up as the plan runs them. The paper measured other "
        "models, on a GPU.",
    )


PAPER = Paper(
    "rotor2019",
    "Optimal checkpointing for heterogeneous chains",
    "Beaumont et al. 2019, arXiv 1911.13214",
    "`impls.schedules.optimal`: what it emits runs as nested regions on stages that save three units each, and what ran is "
    "counted; gradients equal plain's bit for bit. Memory is without the chain's input. The recursion, written down by "
    "itself, and the interpreter of `impls.schedules` check it on random chains.",
    claims,
    more,
    figures,
)
