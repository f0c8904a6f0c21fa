"""The report of a check: verdicts, figures and warnings, as records, as text and as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from reprise.model_check.budgets.choice import Choice, RegionCosts, Spread
from reprise.model_check.budgets.region_work import Unit
from reprise.model_check.comparison import Comparison, TensorsCompared
from reprise.model_check.errors import Raiser
from reprise.model_check.explanations.explanation import NOTHING, Explanation
from reprise.model_check.metering import Costs
from reprise.model_check.plain_runs import RUNS, SPREAD, UNDECIDED

Verdict = Literal["agrees", "refuses", "diverges", "crashes", "cannot be told"]  # "hangs" is not detected: nothing ends a run
NOT_TOLD_APART = "whether the implementation or the model raised this cannot be told: their code lies together"
UNLIKE_FORWARD = "plain's runs differ from each other, but here a recomputation computes other values than its own forward"
TIMES_NOT_TOLD_APART = "their times are too short or too alike here to be told apart"
TOO_SHORT, TOO_NOISY = "too short to tell", "too noisy to tell"
SHORTEST = 1e-3  # seconds of a plain step whose ratios are told
NOISE = 0.1  # how far a spread may be from a ratio on either side, as a share of it, that is told without
WIDE = 2.0  # a spread that is larger by this factor at its end tells nothing
_ERROR_LINES = 4  # of an error at most, in text
_SHOWN = 3  # names at most, in text; JSON has all


@dataclass(frozen=True)
class Warned:
    """Something in the model that goes wrong under checkpointing: what, where, and what to do."""

    kind: str
    message: str
    remedy: str
    places: tuple[str, ...] = ()  # modules or regions


@dataclass(frozen=True)
class Result:
    """One implementation on the model; what could not be measured is None.

    ``error_type`` is the full name of the type of the ``error``, ``where`` has `` at file:line`` of the user's line that raised
    it, if that is known, and ``raised_by`` says who did.
    ``not_measured`` says why there are no ``costs`` although there is no ``error``.
    ``time_ratio`` is that of the median step to plain's; ``time_spread`` has those of the lower quartile to plain's upper one
    and of the upper one to plain's lower one, and is None if a single step was timed.
    ``undecided`` says why it cannot be told whether it agrees; ``sometimes``, how many of its runs differ, if it diverges in
    some alone. ``unlike_forward`` shows that its recomputations compute other values than forward, if it diverges for that
    alone, as plain's runs differ, too. ``first_run`` has all that differs in its first run;
    ``comparison`` what the verdict is about, which is less if it diverges and plain's runs differ, too.
    With a budget there is a ``choice``, or ``over_budget`` says why there is none, or ``budget_error`` has the error with the
    chosen regions; there is none of these if the implementation refuses or crashes with all regions.
    """

    implementation: str
    verdict: Verdict
    error: str = ""
    error_type: str = ""
    raised_by: Raiser | Literal[""] = ""
    where: str = ""
    undecided: str = ""
    sometimes: str = ""
    unlike_forward: Explanation = NOTHING
    comparison: Comparison | None = None
    first_run: Comparison | None = None
    calls: int | None = None
    recomputations: int | None = None
    costs: Costs | None = None
    not_measured: str = ""
    time_ratio: float | None = None
    time_spread: Spread | None = None
    warnings: tuple[Warned, ...] = ()
    explanation: Explanation = NOTHING
    choice: Choice | None = None
    over_budget: str = ""
    budget_error: str = ""


@dataclass(frozen=True)
class Report:
    """What a check found. ``spread`` is what differs between ``plain_runs``, ``initial_values_differ`` between two builds.

    ``reentrant_calls`` counts calls of the model that ask for ``use_reentrant=True``, which is ignored. ``uncalled`` has, by
    glob, matching modules that are not regions because the step does not call them. ``other_leaves`` has the shapes of tensors
    that get a gradient in a plain step, and that neither the model nor the loss reaches before it, so that it is not compared.
    ``chosen_by`` is what regions are chosen by with a budget: what it takes to run them again, in this unit.
    ``not_measured`` says why there are no figures of ``plain``, if so; ``other_leaves`` may lack some then.
    ``plain_seconds`` are those of the fastest plain step.
    """

    regions: tuple[str, ...]
    plain_runs: int
    spread: Comparison
    initial_values_differ: tuple[str, ...]
    spread_explanation: Explanation
    plain: Costs | None
    results: tuple[Result, ...]
    region_costs: tuple[RegionCosts, ...] = ()
    chosen_by: Unit | Literal[""] = ""
    reentrant_calls: int = 0
    uncalled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    other_leaves: tuple[str, ...] = ()
    not_measured: str = ""
    plain_seconds: float = math.inf

    @property
    def agrees(self) -> bool:
        """Whether every implementation agrees, with all regions and with those chosen for a budget, which each keeps."""
        return self._has_only("agrees") and not self._is_over_budget

    @property
    def passes(self) -> bool:
        """Whether none ``fails``, and each keeps the budget, if there is one."""
        return not (self.fails or self._is_over_budget)

    @property
    def fails(self) -> bool:
        """Whether an implementation diverges, refuses or crashes, with all regions or with those chosen for a budget.

        Or it cannot be told whether it agrees although plain's own runs are equal, so that its own are all that differs.
        """
        return not self._has_only("agrees", *(() if self.spread.agrees else (UNDECIDED,)))

    @property
    def _is_over_budget(self) -> bool:
        return any(one.over_budget for one in self.results)

    def _has_only(self, *verdicts: Verdict) -> bool:
        within_budget = all(one.choice is None or one.choice.verdict in verdicts for one in self.results)
        has_error = any(one.budget_error for one in self.results)
        return within_budget and not has_error and all(one.verdict in verdicts for one in self.results)

    def as_json(self) -> str:
        """Everything, for a program, ``agrees`` and ``passes`` included; a number that is not finite is null."""
        content = {"agrees": self.agrees, "passes": self.passes, **dataclasses.asdict(self)}
        for stored, one in zip(content["results"], self.results, strict=True):
            stored["rounding_alone"] = one.comparison is not None and one.comparison.is_rounding
            if one.choice is not None:
                stored["choice"]["agrees"] = one.choice.agrees
        return json.dumps(_finite(content), indent=2, allow_nan=False)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _listed(names: Any) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more


def _lines(report: Report) -> list[str]:
    lines = [f"regions: {len(report.regions)} in forward: {_listed(report.regions)}"]
    if report.reentrant_calls and not any(one.implementation == "torch-reentrant" for one in report.results):
        lines.append(
            f"use_reentrant=True is ignored here (calls of the model with it: {report.reentrant_calls}); "
            "--impl torch-reentrant checks that"
        )
    lines += _uncalled(report.uncalled)
    if report.other_leaves:
        lines.append(
            "not compared: gradients of tensors that were not found in the model and the loss before the step: "
            f"{len(report.other_leaves)}, of shape {_listed(report.other_leaves)}"
        )
    if not report.spread.agrees:
        told = (
            f"not deterministic: {report.plain_runs} plain runs differ. An implementation diverges only if {RUNS} further runs "
            f"of it differ from plain more than {SPREAD:g} times as much; a smaller difference cannot be told from noise"
        )
        lines += [
            told,
            *(f"  {line}" for line in differences(report.spread)),
            *_spread(report.spread_explanation),
        ]
    if report.initial_values_differ:
        told = "build() does not depend on the seed alone; its initial values differ: "
        lines.append(told + _listed(report.initial_values_differ))
    if report.not_measured:
        lines.append(f"plain has no figures: {report.not_measured}")
        lines.append("nor is it known whether gradients of tensors outside of the model are left out of what is compared")
    lines += [*_table(report), *_notes_on_time(report)]
    if report.region_costs:
        lines += _regions_table(report.region_costs, report.chosen_by)
    return [*lines, *_sections(report)]


def _spread(explanation: Explanation) -> Iterator[str]:
    yield from explanation.lines
    yield from [f"  an error ended one of them: {explanation.ended_by}"] if explanation.ended_by else []
    yield from [f"    {explanation.remedy}"] if explanation.remedy else []


def _uncalled(uncalled: Mapping[str, tuple[str, ...]]) -> list[str]:
    told = "modules that the step does not call, which are no regions:"
    found = {f"--regions {shlex.quote(glob)}": _listed(names) for glob, names in uncalled.items()}
    if len(found) < 2:
        return [f"{glob} matches {told} {names}" for glob, names in found.items()]
    return [f"these match {told}", *(f"  {glob}: {names}" for glob, names in found.items())]


def _sections(report: Report) -> Iterator[str]:
    """What is told of each implementation; what holds for several follows once, under their names."""
    warnings = _warnings(report.results)
    parts = {one.implementation: [*_parts(one, len(report.region_costs), warnings)] for one in report.results}
    holders = {part: tuple(name for name, own in parts.items() if part in own) for own in parts.values() for part in own}
    is_first = True
    for one in report.results:
        own = [line for part in parts[one.implementation] if len(holders[part]) == 1 for line in part]
        yield from [""] if is_first or own else []
        yield from [*_verdict(one, report.other_leaves), *own]
        is_first = bool(own)
    for several in dict.fromkeys(names for names in holders.values() if len(names) > 1):
        yield from ["", f"{_joined(several)}:"]
        yield from (line for part, names in holders.items() if names == several for line in part)


def _joined(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _warnings(results: Sequence[Result]) -> dict[str, tuple[str, ...]]:
    """The lines of each kind of warning, with the places of each implementation if these are not the same."""
    found: dict[str, dict[str, list[str]]] = {}
    told = {warned.kind: warned for one in results for warned in one.warnings}
    for one in results:
        for warned in one.warnings:
            found.setdefault(warned.kind, {}).setdefault(_listed(warned.places), []).append(one.implementation)
    lines: dict[str, tuple[str, ...]] = {}
    for kind, places in found.items():
        first, last = f"  warning: {told[kind].message}: ", f"    {told[kind].remedy}"
        apart = [f"    {_joined(names)}: {one}" for one, names in places.items()]
        lines[kind] = (first.rstrip(), *apart, last) if len(apart) > 1 else (first + next(iter(places)), last)
    return lines


def _parts(one: Result, regions: int, warnings: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """What is told of an implementation after its verdict, in parts of some lines, which may be the same for another one."""
    if one.unlike_forward:
        yield f"  {UNLIKE_FORWARD}", *_explained(one, one.unlike_forward)
    if one.comparison is not None:
        yield from ((f"  {line}",) for line in differences(one.comparison))
    if one.first_run != one.comparison:
        yield ("  (the table counts what differs no more than plain's runs do, too)",)
    if explanation := tuple(_explained(one, one.explanation)):
        yield explanation
    if one.not_measured:
        yield (f"  no figures, and no further warnings: {one.not_measured}",)
    yield from (warnings[warned.kind] for warned in one.warnings)
    yield from _choice(one, one.choice, regions) if one.choice else ()
    if one.over_budget:
        yield (f"  {one.over_budget}",)
    if one.budget_error:
        yield tuple(_shortened(f"  {one.implementation}, with regions chosen for the budget, ", one.budget_error))


def _explained(one: Result, explanation: Explanation) -> Iterator[str]:
    """The lines of an explanation, without an error that the verdict has, and without the remedy if a warning has it."""
    yield from (f"  {line}" for line in explanation.lines)
    if explanation.ended_by and [explanation.ended_by] != one.error.splitlines()[:1]:
        yield f"  ended by {explanation.ended_by}"
    if explanation.remedy and explanation.remedy not in {warned.remedy for warned in one.warnings}:
        yield f"    {explanation.remedy}"


def _verdict(one: Result, other_leaves: Sequence[str]) -> list[str]:
    """Lines with the verdict on an implementation, and its reason."""
    if one.verdict == UNDECIDED:
        first = f"{one.implementation}: whether it agrees cannot be told: {one.undecided}"
    else:
        first = f"{one.implementation} {one.verdict}"
        if one.verdict == "agrees" and other_leaves:
            count = f"{len(other_leaves)} gradient{'s' * (len(other_leaves) != 1)}"
            first += f" in what is compared; {count} of the step cannot be compared"
        first += ", by rounding alone" if one.comparison is not None and one.comparison.is_rounding else ""
    lines = _shortened(f"{first}{one.where}: ", one.error) or [first]
    if one.sometimes:
        lines.append(f"  the implementation itself is not deterministic: {one.sometimes}")
    if one.raised_by == "cannot be told":
        lines.append(f"  {NOT_TOLD_APART}")
    return lines


def _shortened(begin: str, error: str) -> list[str]:
    """The lines of an error after ``begin``, shortened; none if there is no error."""
    first, *rest = error.splitlines() or [""]
    lines = [f"{begin}{first}", *(f"  {line}" for line in rest[: _ERROR_LINES - 1])] if error else []
    more = len(rest) + 1 - _ERROR_LINES
    return [*lines, f"  ({more} more lines are in --json FILE)"] if more > 0 else lines


def _is_noisy(ratio: float, spread: Spread) -> bool:
    return spread[0] < ratio * (1 - NOISE) or spread[1] > ratio * (1 + NOISE)


def _time(ratio: float, spread: Spread | None, plain_seconds: float) -> str:
    """A ratio of times, with its spread if that is large; in words, if it tells nothing."""
    if plain_seconds < SHORTEST:
        return TOO_SHORT
    if spread is None:
        return f"{ratio:.2f} (of one step)"
    if not _is_noisy(ratio, spread):
        return f"{ratio:.2f}"
    told = f"{ratio:.2f} ({spread[0]:.2f} to {spread[1]:.2f})"
    tells_nothing = spread[0] <= 1 <= spread[1] or spread[1] > WIDE * spread[0]
    return f"{told}, {TOO_NOISY}" if tells_nothing else told


def _notes_on_time(report: Report) -> list[str]:
    """What is to be known of the column, if times are short or vary."""
    timed = [one for one in report.results if one.time_ratio is not None]
    if timed and report.plain_seconds < SHORTEST:
        return [f"a plain step takes {report.plain_seconds * 1e3:.2g} ms here: {TOO_SHORT} what a step takes beside it"]
    if any(one.time_spread and one.time_ratio and _is_noisy(one.time_ratio, one.time_spread) for one in timed):
        return ["time in brackets: the ratio of quartiles of the few steps that were timed"]
    return []


def _regions_table(regions: Sequence[RegionCosts], chosen_by: str) -> list[str]:
    columns = ["region", "kept", "passed to it", "forward"]
    rows = [[one.name, *map(_amount, (one.kept_bytes, one.boundary_bytes)), f"{one.seconds * 1e3:.3g} ms"] for one in regions]
    work = {"FLOPs": [f"{one.flops:,}" for one in regions], "bytes": [_amount(one.made_bytes) for one in regions]}
    if chosen_by not in work:
        return _aligned([columns, *rows])
    table = _aligned([[*columns, chosen_by], *([*row, cell] for row, cell in zip(rows, work[chosen_by], strict=True))])
    return [*table, f"regions are chosen by {chosen_by} of forward: {TIMES_NOT_TOLD_APART}"]


def _choice(one: Result, choice: Choice, regions: int) -> Iterator[tuple[str, ...]]:
    """What was chosen for a budget; its regions are a part by themselves, as others may have chosen the same."""
    error = choice.predicted / choice.executed - 1 if choice.executed else 0.0
    count = len(choice.globs) + len(choice.unnamed)
    told = f"checkpoint {count} of {regions} regions" if count else f"plain fits, so checkpoint none of {regions} regions"
    lines = [
        f"  within {choice.budget:,} bytes: {told}",
        f"    peak {choice.executed:,} bytes, executed; predicted {choice.predicted:,} ({error:+.1%})",
        f"    {_time_of_choice(choice)}",
    ]
    if choice.verdict == UNDECIDED:
        lines.append("    whether steps with these regions checkpointed are plain's cannot be told")
    elif choice.unlike_forward:
        lines += [f"    {UNLIKE_FORWARD}", *(f"  {line}" for line in _explained(one, choice.unlike_forward))]
    elif not choice.agrees:
        lines.append("    steps with these regions checkpointed are not plain's")
    yield tuple(lines)
    if choice.globs:
        yield (f"    with the model's own checkpointing off: --regions {' '.join(map(shlex.quote, choice.globs))}",)
    if choice.unnamed:
        yield (f"    no module, so no glob: {', '.join(choice.unnamed)}",)


def _time_of_choice(choice: Choice) -> str:
    own = _time(choice.time_ratio, choice.time_spread, choice.plain_seconds)
    of_all = _time(choice.time_ratio_of_all, choice.time_spread_of_all, choice.plain_seconds)
    return f"time beside plain's: {own}" + (f"; with all regions: {of_all}" if own != TOO_SHORT else "")


def differences(comparison: Comparison) -> list[str]:
    """A line for each kind of thing that differs."""
    lines = [line for name, part in comparison.parts.items() for line in _difference(name, part)]
    streams = {"after the step": comparison.random_streams, "after later steps": comparison.random_streams_of_later_steps}
    flags = {"after the step": comparison.training_flags, "after later steps": comparison.training_flags_of_later_steps}
    lines += [
        f"random number streams are in another state {when}: {_listed(names)}" for when, names in streams.items() if names
    ]
    lines += [f"train() or eval() differs {when}: {_listed(names)}" for when, names in flags.items() if names]
    left = {"after the step": comparison.process_state, "after later steps": comparison.process_state_of_later_steps}
    lines += [f"the process is left in another state {when}: {_listed(names)}" for when, names in left.items() if names]
    return lines


def _difference(name: str, part: TensorsCompared) -> list[str]:
    lines = []
    if part.differing:
        largest = sorted(part.differing, key=lambda one: -one.absolute)
        told = [f"{one.name} {one.reason or f'by {_units(one.units)}{one.absolute:.2g}'}" for one in largest]
        lines.append(f"{name}: {len(part.differing)} of {part.total} differ: {_listed(told)}")
    if part.missing:
        lines.append(f"{name}: {len(part.missing)} of {part.total} missing: {_listed(part.missing)}")
    if part.surplus:
        lines.append(f"{name}: {len(part.surplus)} that plain does not have: {_listed(part.surplus)}")
    return lines


def _units(units: int | None) -> str:
    if units is None:
        return ""
    told = "over 1,000,000" if units > 1_000_000 else f"{units:,}"
    return f"{told} unit{'s' * (units != 1)} in the last place, "


COLUMNS = ("implementation", "verdict", "gradients", "buffers", "calls", "again", "kept", "peak", "FLOPs again", "time")


def _table(report: Report) -> list[str]:
    plain = report.plain
    rows: list[tuple[str, ...]] = [COLUMNS, ("plain", "", "", "", "", "", *_bytes(plain), "", "1.00")]
    for one in report.results:
        compared = one.first_run
        again = ""
        if one.costs and plain and plain.forward_flops:
            again = f"{one.costs.again_flops / plain.forward_flops:.0%} of forward"
        rows.append(
            (
                one.implementation,
                one.verdict,
                _equal(compared.gradients) if compared else "",
                _equal(compared.buffers) if compared else "",
                *("" if count is None else str(count) for count in (one.calls, one.recomputations)),
                *_bytes(one.costs),
                again,
                _time(one.time_ratio, one.time_spread, report.plain_seconds) if one.time_ratio is not None else "",
            )
        )
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["", *("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)]


def _equal(part: TensorsCompared) -> str:
    return f"{part.total - len(part.differing) - len(part.missing)}/{part.total} equal"


def _bytes(costs: Costs | None) -> tuple[str, str]:
    return (_amount(costs.kept_bytes), _amount(costs.peak_bytes)) if costs else ("", "")


def _amount(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"
