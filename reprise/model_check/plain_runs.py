"""Plain runs, and whether an implementation's runs differ from them by more than they differ among themselves.

If the model is not deterministic, a difference in one run may be chance, so both are run again, for each implementation anew
and in an order that is drawn: what changes from run to run, as by a counter that all models share, meets both alike. For each
tensor, each of these runs has a distance from the first plain run. If an implementation did what plain does, any other order
could have been drawn with the same results. It diverges only if no other choice of as many runs is set apart from the rest in
as many tensors. By chance that happens at most once in ``comb(PLAIN_RUNS + RUNS, RUNS)`` such comparisons, 495, however many
tensors vary and however they do.

If plain's runs are all equal, and not all of the implementation's are set apart, one of both may be wrong now and then. They
are then run in pairs, in an order that is drawn for each. If an implementation did what plain does, the one of a pair that
differs would be plain's as often as not. It diverges if it differed alone in ``ODD_PAIRS`` pairs before plain did in any. By
chance that happens at most once in ``2**ODD_PAIRS`` comparisons, so that both together accuse by chance at most once in 330.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from reprise.model_check.comparison import Comparison, Place, compare_first_steps, compare_runs, compare_tensors, widest
from reprise.model_check.errors import MeteringFails, PlainFails
from reprise.model_check.metering import Costs, Observations, measure
from reprise.model_check.regions import Key
from reprise.model_check.run import Checkpoint, Run, Setting, run

PLAIN_RUNS, RUNS = 8, 4  # further ones of plain and of an implementation, if a first run differs
PAIRS, ODD_PAIRS = 40, 10  # of further runs, if plain's are equal: at most, and those that are enough for a divergence
SPREAD = 4.0  # runs are set apart if they differ by more than this many times what plain runs do
UNDECIDED: Literal["cannot be told"] = "cannot be told"
JudgedVerdict = Literal["agrees", "diverges", "cannot be told"]


@dataclass(frozen=True)
class Judged:
    """Whether an implementation's runs are plain's; why it cannot be told, if so; and how many differ, if not all do.

    ``comparison`` has what the verdict is about: all that differs in the ``first_run``, or what diverges of it alone.
    """

    verdict: JudgedVerdict
    comparison: Comparison
    first_run: Comparison
    undecided: str = ""
    sometimes: str = ""
    seconds: tuple[float, ...] = ()  # of steps


@dataclass
class PlainRuns:
    """The first plain run, and how others compare with it: one at first, more whenever an implementation's run differs."""

    setting: Setting
    tell: Callable[[str], object]
    first: Run
    costs: Costs | None  # None if the model fails under the meter, or the meter does
    not_measured: str  # why there are no costs
    other_leaves: tuple[str, ...]  # shapes of what has a gradient that is not compared; maybe not all without costs
    initial_values_differ: tuple[str, ...]
    seconds: list[float]
    whole: list[Comparison]
    of_first_step: list[Comparison] = field(default_factory=list)  # of runs of one step

    @classmethod
    def begun(cls, setting: Setting, tell: Callable[[str], object]) -> PlainRuns:
        """Run plain twice, the second time with the first step metered. Raises what ``run`` does.

        If the metered run differs or fails, the meter may be the reason, so a run without it takes its place.
        """
        first, costs, other, reason, seen = run(setting, None), None, None, "", Observations()
        try:
            costs, other = measure(setting, None, seen, steps=setting.steps)
        except (PlainFails, MeteringFails) as error:
            reason = str(error)
        seconds = [*first.seconds, *(other.seconds if other else ())]
        if other is None or not compare_runs(first, other).agrees:
            other = run(setting, None)
            seconds += other.seconds
        initial = tuple(one.name for one in compare_tensors(first.initial, other.initial).differing)
        return cls(
            setting, tell, first, costs, reason, tuple(seen.other_leaves), initial, seconds, [compare_runs(first, other)]
        )

    @property
    def spread(self) -> Comparison:
        """What differs between plain runs, each with its largest difference; nothing if the model is deterministic."""
        return widest((*self.whole, *self.of_first_step))

    def __len__(self) -> int:
        return 1 + len(self.whole) + len(self.of_first_step)

    def beyond(self, compared: Comparison) -> frozenset[Place]:
        """Where a run differs from the first plain one by more than ``SPREAD`` times what other plain runs do."""
        spread = self.spread.distances
        return frozenset(place for place, one in compared.distances.items() if one > SPREAD * spread.get(place, 0.0))

    def judge(self, checkpoint: Checkpoint, seen: Run, *, only: frozenset[Key] | None = None) -> Judged:
        """Judge an implementation by its first run, or by more if that or plain's differ. Raises what the runs raise."""
        compared = compare_runs(self.first, seen)
        if compared.agrees and self.spread.agrees:
            return Judged("agrees", compared, compared)
        self.tell(f"it differs: run {RUNS} more times, and plain {PLAIN_RUNS} more times, in an order that is drawn")
        whole = not self.spread.agrees or compared.of_first_step.agrees
        runs, seconds = [compared if whole else compared.of_first_step], list[float]()

        def run_again() -> None:
            again = run(self.setting, checkpoint, steps=None if whole else 1, only=only)
            runs.append(self._compared(again, whole=whole))
            seconds.extend(again.seconds)

        plain: list[Comparison] = []
        order = random.Random(self.setting.seed)  # so that what differs in every other run, say, meets both alike
        for is_plain in order.sample([True, False], PLAIN_RUNS + RUNS, counts=[PLAIN_RUNS, RUNS]):
            if is_plain:
                plain.append(self._run_plain(whole=whole))
            else:
                run_again()
        if places := set_apart([one.distances for one in plain], [one.distances for one in runs[1:]]):
            first = compared if places & compared.distances.keys() else runs[1]
            later = () if whole else compared.distances.keys() - compared.of_first_step.distances.keys()
            return Judged("diverges", first.at({*places, *later}), first, seconds=tuple(seconds))
        if self.spread.agrees and self._differs_alone(run_again, runs, order, whole=whole):
            return Judged("diverges", compared, compared, sometimes=self._counts(runs), seconds=tuple(seconds))
        return Judged(UNDECIDED, compared, compared, self._undecided(runs), seconds=tuple(seconds))

    def _differs_alone(
        self, run_again: Callable[[], None], runs: Sequence[Comparison], order: random.Random, *, whole: bool
    ) -> bool:
        """Whether an implementation differs in ``ODD_PAIRS`` of further pairs of runs, before plain does in any."""
        self.tell(f"not all of its runs differ: both are run again, up to {PAIRS} times")
        odd = 0
        for _ in range(PAIRS):
            pair: list[Callable[[], object]] = [run_again, lambda: self._run_plain(whole=whole)]
            for one in order.sample(pair, 2):
                one()
            odd += not runs[-1].agrees
            if odd == ODD_PAIRS or not self.spread.agrees:
                break
        return odd == ODD_PAIRS and self.spread.agrees

    def _run_plain(self, *, whole: bool) -> Comparison:
        one = run(self.setting, None, steps=None if whole else 1)
        self.seconds += one.seconds
        compared = self._compared(one, whole=whole)
        (self.whole if whole else self.of_first_step).append(compared)
        return compared

    def _compared(self, seen: Run, *, whole: bool) -> Comparison:
        return (compare_runs if whole else compare_first_steps)(self.first, seen)

    def _counts(self, runs: Sequence[Comparison]) -> str:
        differing = sum(not one.agrees for one in runs)
        return f"{differing} of its {len(runs)} runs differ from plain, whose {len(self)} runs are equal"

    def _undecided(self, runs: Sequence[Comparison]) -> str:
        if self.spread.agrees:
            return f"{self._counts(runs)}: that may be chance"
        beyond = sum(bool(self.beyond(one)) for one in runs)
        if not beyond:
            return f"no run differs from plain's by more than {SPREAD:g} times what {len(self)} plain runs do"
        return (
            f"{beyond} of {len(runs)} runs differ from plain's by more than {SPREAD:g} times what {len(self)} plain runs do: "
            "that may be chance"
        )


def set_apart(plain: Sequence[Mapping[Place, float]], others: Sequence[Mapping[Place, float]]) -> frozenset[Place]:
    """Where all ``others`` are farther than ``SPREAD`` times the farthest of ``plain``; nothing if that may be chance.

    It may be chance if some other choice of as many among all these runs is set apart in as many places.
    """
    runs = [*plain, *others]
    places = list(dict.fromkeys(itertools.chain.from_iterable(runs)))
    if not places:
        return frozenset()
    distances = np.array([[one.get(place, 0.0) for place in places] for one in runs])
    (found, *rest) = _apart(distances, len(others))
    if not found.any() or max(one.sum() for one in rest) >= found.sum():
        return frozenset()
    return frozenset(place for place, is_apart in zip(places, found, strict=True) if is_apart)


def _apart(distances: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Which columns set apart ``count`` rows from the others, for each choice of them; the last rows come first."""
    rows = range(len(distances))
    for chosen in itertools.combinations(reversed(rows), count):
        rest = [row for row in rows if row not in chosen]
        yield distances[list(chosen)].min(0) > SPREAD * distances[rest].max(0)
