"""Which regions to checkpoint so that a step stays within a budget of bytes: predicted, chosen, and executed.

Bytes are those of storages that operators make in a step, gradients included, on every device.
"""

from __future__ import annotations

import glob
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from torch import nn

from impls import Implementation
from reprise.model_check.budgets.integer_program import cheapest, least
from reprise.model_check.budgets.memory_model import Moment, freed_with, moments_of, predicted_peak
from reprise.model_check.budgets.memory_trace import MemoryTrace, trace
from reprise.model_check.budgets.region_work import Unit, Work, costs_of, pooled
from reprise.model_check.explanations.explain import explain_unlike_forward
from reprise.model_check.explanations.explanation import NOTHING, Explanation
from reprise.model_check.metering import Costs, Observations, measure
from reprise.model_check.plain_runs import JudgedVerdict, PlainRuns
from reprise.model_check.regions import Key, RegionRun, Watch
from reprise.model_check.run import Checkpoint, Probe, Setting, now, run

Budget = int | str
Spread = tuple[float, float]
TRIES = 4  # choices that are executed, each with a lower limit, while the executed peak exceeds the budget
ROUNDS = 3  # of steps that are timed
ROUNDS_OF_REGIONS = 5
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_TOO_LARGE = f"budget is too large: more than {sys.maxsize:,} bytes, or as much in percent"
_GIVEN = re.compile(r"(?P<number>\d+(\.\d+)?) ?(?P<unit>%|KiB|MiB|GiB|)")


@dataclass(frozen=True)
class RegionCosts:
    """Bytes that checkpointing a region alone frees after its forward, bytes that it is passed, and its forward's costs.

    Seconds are the least of several runs, and of regions that do the same work. ``made_bytes`` are those of storages that its
    operators make.
    """

    name: str
    kept_bytes: int
    boundary_bytes: int
    seconds: float
    flops: int
    made_bytes: int


@dataclass(frozen=True)
class Choice:
    """Regions to checkpoint within a budget. ``globs`` name them; those without a module have none, and are in ``unnamed``.

    Bytes are peaks. ``verdict`` compares steps with this choice to plain ones. FLOPs, and times as ratios to plain's, are those
    of a step with this choice, and of one with all regions checkpointed that are chosen from: outermost ones, none inside them.
    ``unlike_forward`` is as that of a ``Result``. A spread has the least and the largest ratio of a few rounds.
    """

    budget: int
    predicted: int
    executed: int
    globs: tuple[str, ...]
    unnamed: tuple[str, ...]
    verdict: JudgedVerdict
    flops: int
    flops_of_all: int
    time_ratio: float
    time_ratio_of_all: float
    time_spread: Spread
    time_spread_of_all: Spread
    plain_seconds: float
    unlike_forward: Explanation = NOTHING

    @property
    def agrees(self) -> bool:
        """Whether steps with this choice are plain's; False if that cannot be told."""
        return self.verdict == "agrees"


class OverBudget(ValueError):
    """No choice of regions fits the budget."""


def parse_budget(given: Budget, plain_peak: int) -> int:
    """A budget in bytes. Raises ValueError for what is neither bytes nor a share of plain's peak, or is too large."""
    if isinstance(given, int) and given > sys.maxsize:  # which str may refuse
        raise ValueError(_TOO_LARGE)
    found = _GIVEN.fullmatch(str(given).strip())
    if isinstance(given, bool) or found is None:
        raise ValueError(
            f"budget is {given!r}; accepted are bytes, such as 500000 or '1.5 GiB', and a share of plain's peak: '60%'"
        )
    number, unit = float(found["number"]), found["unit"]
    if number * UNITS.get(unit, 1) > sys.maxsize:
        raise ValueError(_TOO_LARGE)
    return int(plain_peak * number / 100 if unit == "%" else number * UNITS[unit])


@dataclass(frozen=True)
class Planner:
    """What was measured of a plain step, to choose by: memory over time, and costs in a ``unit``.

    Regions of a module go together, in a group.
    """

    setting: Setting
    plain: PlainRuns
    trace: MemoryTrace
    groups: tuple[tuple[Key, ...], ...]
    works: tuple[Work, ...]
    seconds: tuple[float, ...]
    unit: Unit
    costs: tuple[float, ...]
    tell: Callable[[str], object]

    @classmethod
    def measured(cls, setting: Setting, plain: PlainRuns, tell: Callable[[str], object]) -> Planner:
        """Measure a plain step."""
        count = _counted(tell, "plain, for the budget", 1 + ROUNDS_OF_REGIONS)
        next(count)
        traced = trace(setting)
        groups = _grouped(traced)
        works = tuple(_work(traced, keys) for keys in groups)
        times = [_seconds_of_regions(setting) for _ in count]
        rounds = [[sum(one[key] for key in keys) for one in times] for keys in groups]
        unit, costs = costs_of(works, rounds)
        return cls(setting, plain, traced, groups, works, pooled(works, rounds), unit, costs, tell)

    @property
    def plain_peak(self) -> int:
        """The peak of the step without checkpointing, as it is reported, or that of the trace if the step was not measured."""
        return self.plain.costs.storages_peak_bytes if self.plain.costs else max(self.trace.alive)

    def region_costs(self) -> tuple[RegionCosts, ...]:
        """The costs of each group of regions."""
        return tuple(
            RegionCosts(
                self.trace.regions[keys[0]].name,
                sum(one.size for one in self.trace.stored if (freed := freed_with(self.trace, one)) and freed <= {*keys}),
                sum(one.size for one in self.trace.stored if one.passed_to & {*keys}),
                seconds,
                work.flops,
                work.made_bytes,
            )
            for keys, work, seconds in zip(self.groups, self.works, self.seconds, strict=True)
        )

    def choose(self, one: Implementation, given: Budget) -> Choice:
        """Choose and execute. Raises OverBudget, with the smallest peak that was executed, if none of these fits the budget.

        These are not all choices: those are executed that are predicted to fit, and the one that is predicted to be least.

        Raises what the implementation raises with these regions checkpointed, and BuildFails and PlainFails as ``run`` does.
        """
        budget = parse_budget(given, self.plain_peak)
        member = {key: number for number, keys in enumerate(self.groups) for key in keys}
        moments = moments_of(self.trace, member, early_stop="early-stop" in one.capabilities)
        limit = max(budget, max(self.trace.alive)) if self.plain_peak <= budget else budget  # none is chosen if plain fits
        peaks: dict[frozenset[int], int] = {}  # of what was executed
        for attempt in range(TRIES + 1):
            fitting = cheapest(moments, self.costs, limit) if attempt < TRIES else None
            chosen = least(moments, len(self.groups)) if fitting is None else fitting
            if chosen not in peaks:
                self.tell(
                    f"{one.name}, {len(chosen)} of {len(self.groups)} regions, choice {attempt + 1} of {TRIES + 1} at most"
                )
                costs = self._executed(one, chosen)
                peak = peaks[chosen] = costs.storages_peak_bytes
                if peak <= budget:
                    return self._choice(one, budget, moments, chosen, costs)
            if fitting is None:
                break
            limit = min(limit, predicted_peak(moments, chosen)) - (peaks[chosen] - budget)
        raise OverBudget(self._over_budget(one, given, budget, peaks))

    def _over_budget(self, one: Implementation, given: Budget, budget: int, peaks: Mapping[frozenset[int], int]) -> str:
        smallest = min(peaks, key=peaks.__getitem__)
        names = ", ".join(self._names(smallest)) or "none"
        return (
            f"budget is {given}, {budget:,} bytes; the smallest peak of the choices that were executed for {one.name} "
            f"({len(peaks)}) is {peaks[smallest]:,}, with {names} checkpointed, and another may take less; "
            f"plain takes {self.plain_peak:,}"
        )

    def _choice(self, one: Implementation, budget: int, moments: Sequence[Moment], chosen: Set[int], costs: Costs) -> Choice:
        count = _counted(self.tell, f"{one.name}, within the budget", 2 + ROUNDS * 3)
        next(count)
        keys, modules = self._keys(chosen), {name for name, _ in self.trace.model.named_modules()}
        seen = run(self.setting, one.checkpoint, only=keys)
        names = self._names(chosen)
        all_keys = self._keys({*range(len(self.groups))})
        next(count)
        every, _ = measure(self.setting, one.checkpoint, Observations(), only=all_keys)
        rounds = self._times(one, count, keys, all_keys)
        plain, of_choice, of_all = (statistics.median(times) for times in zip(*rounds, strict=True))
        verdict = self.plain.judge(one.checkpoint, seen, only=keys).verdict
        unlike = explain_unlike_forward(self.setting, one.checkpoint, self.plain, verdict, only=keys)
        return Choice(
            budget=budget,
            predicted=predicted_peak(moments, chosen),
            executed=costs.storages_peak_bytes,
            globs=tuple(glob.escape(name) for name in names if name in modules),
            unnamed=tuple(name for name in names if name not in modules),
            verdict="diverges" if unlike else verdict,
            flops=costs.flops,
            flops_of_all=every.flops,
            time_ratio=of_choice / plain,
            time_ratio_of_all=of_all / plain,
            time_spread=_spread([choice / plain for plain, choice, _ in rounds]),
            time_spread_of_all=_spread([every / plain for plain, _, every in rounds]),
            plain_seconds=min(times[0] for times in rounds),
            unlike_forward=unlike,
        )

    def _executed(self, one: Implementation, chosen: Set[int]) -> Costs:
        return measure(self.setting, one.checkpoint, Observations(), only=self._keys(chosen))[0]

    def _keys(self, chosen: Set[int]) -> frozenset[Key]:
        return frozenset(key for number in chosen for key in self.groups[number])

    def _names(self, chosen: Set[int]) -> tuple[str, ...]:
        return tuple(self.trace.regions[self.groups[number][0]].name for number in sorted(chosen))

    def _times(self, one: Implementation, count: Iterator[int], *choices: frozenset[Key]) -> list[tuple[float, ...]]:
        """Seconds of a step, plain and with each of these choices of regions checkpointed, in each round."""

        def timed(checkpoint: Checkpoint | None, keys: frozenset[Key] | None) -> float:
            next(count)
            return run(self.setting, checkpoint, steps=1, only=keys).seconds[0]

        return [(timed(None, None), *(timed(one.checkpoint, keys) for keys in choices)) for _ in range(ROUNDS)]


def _spread(ratios: Sequence[float]) -> Spread:
    return min(ratios), max(ratios)


def _counted(tell: Callable[[str], object], what: str, runs: int) -> Iterator[int]:
    """The number of each run, which is told before it begins."""
    for number in range(1, runs + 1):
        tell(f"{what}: run {number} of {runs}")
        yield number


def _grouped(traced: MemoryTrace) -> tuple[tuple[Key, ...], ...]:
    """Regions grouped by the module that they run, as a glob would choose them; others by themselves."""
    modules = {name for name, _ in traced.model.named_modules()}
    groups: dict[object, list[Key]] = {}
    for key, region in traced.regions.items():
        groups.setdefault(region.name if region.name in modules else key, []).append(key)
    return tuple(map(tuple, groups.values()))


def _work(traced: MemoryTrace, keys: Sequence[Key]) -> Work:
    return Work(
        flops=sum(traced.flops[key] for key in keys),
        made_bytes=sum(one.size for one in traced.stored if one.maker in keys),
        operators=sum(traced.operators[key] for key in keys),
    )


def _seconds_of_regions(setting: Setting) -> dict[Key, float]:
    """How long forward of each outermost region takes."""
    seconds: dict[Key, float] = {}

    def watch(model: nn.Module) -> Watch:
        @contextmanager
        def timed(one: RegionRun) -> Iterator[None]:
            start = now(model)
            yield
            if len(one.region.key) == 1:
                seconds[one.region.key] = now(model) - start

        return timed

    run(setting, None, steps=1, probe=Probe(lambda _: nullcontext(), watch, lambda *_: None))
    return seconds
