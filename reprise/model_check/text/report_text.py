"""What a report says of each implementation, and before: lines of text. What holds for several is said once."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from reprise.model_check.comparison import Comparison, TensorsCompared
from reprise.model_check.plain_runs import RUNS, SPREAD, UNDECIDED
from reprise.model_check.regions import REENTRANT
from reprise.model_check.text.tables import is_too_short, notes_on_time, ratio_of_times, regions_table, results_table

if TYPE_CHECKING:
    from reprise.model_check.budgets.choice import Choice
    from reprise.model_check.explanations.explanation import Explanation
    from reprise.model_check.report import Report, Result

NOT_TOLD_APART = "whether the implementation or the model raised this cannot be told: their code lies together"
UNLIKE_FORWARD = "plain's runs differ from each other, but here a recomputation computes other values than its own forward"
EXPLAIN = "--explain names the regions and the operator at which this begins"
_ERROR_LINES = 4  # of an error at most
_SHOWN = 3  # names at most; JSON has all


def text_of(report: Report) -> list[str]:
    """The lines of a report."""
    lines = [f"regions: {len(report.regions)} in forward: {_listed(report.regions)}"]
    if report.reentrant_calls and not any(one.implementation == REENTRANT for one in report.results):
        lines.append(
            f"use_reentrant=True is ignored here (calls of the model with it: {report.reentrant_calls}); "
            f"--impl {REENTRANT} checks that"
        )
    lines += _uncalled(report.uncalled)
    if report.other_leaves:
        lines.append(
            "not compared: gradients of tensors that were not found in the model and the loss before the step: "
            f"{len(report.other_leaves)}, of shape {_listed(report.other_leaves)}"
        )
    if not report.spread.agrees:
        told = (
            f"not deterministic: {report.plain_runs} plain runs differ. An implementation diverges if {RUNS} further runs of "
            f"it differ from plain more than {SPREAD:g} times as much, or if a recomputation computes other values than its "
            "forward; a smaller difference cannot be told from noise"
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
    lines += [*results_table(report), *notes_on_time(report)]
    if report.region_costs:
        lines += regions_table(report.region_costs, report.chosen_by)
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
    parts = {one.implementation: [*_parts(one, report, warnings)] for one in report.results}
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


def _parts(one: Result, report: Report, warnings: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """What is told of an implementation after its verdict, in parts of some lines, which may be the same for another one."""
    if one.unlike_forward:
        yield f"  {UNLIKE_FORWARD}", *_explained(one, one.unlike_forward)
    if one.comparison is not None:
        if one.verdict == "diverges" and one.comparison.of_first_step.agrees:
            yield ("  nothing differs in the first step, which the table shows",)
        yield from ((f"  {line}",) for line in differences(one.comparison))
    if one.first_run != one.comparison:
        left_out = "in some of its runs alone" if report.spread.agrees else "no more than plain's runs do"
        yield (f"  (the table counts what differs {left_out}, too)",)
    if explanation := tuple(_explained(one, one.explanation)):
        yield explanation
    elif one.verdict in ("diverges", "refuses", "crashes") and not (one.warnings or one.unlike_forward):
        yield (f"  {EXPLAIN}",)
    if one.not_measured:
        yield (f"  no figures, and no further warnings: {one.not_measured}",)
    yield from (warnings[warned.kind] for warned in one.warnings)
    yield from _choice(one, one.choice, len(report.region_costs)) if one.choice else ()
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
    return [*lines, f"  ({more} more lines, which --json FILE writes)"] if more > 0 else lines


def _choice(one: Result, choice: Choice, regions: int) -> Iterator[tuple[str, ...]]:
    """What was chosen for a budget; its regions are a part by themselves, as others may have chosen the same."""
    error = choice.predicted / choice.executed - 1 if choice.executed else 0.0
    count = len(choice.globs) + len(choice.unnamed)
    told = f"checkpoint {count} of {regions} regions" if count else f"plain fits, so checkpoint none of {regions} regions"
    lines = [
        f"  within {choice.budget:,} bytes: {told}",
        f"    peak {choice.executed:,} bytes in the first step, executed; predicted {choice.predicted:,} ({error:+.1%})",
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
        globs = " ".join(map(shlex.quote, choice.globs))
        yield (f"    --regions {globs} (with the model's own checkpointing off, if it has any)",)
    if choice.unnamed:
        yield (f"    no module, so no glob: {', '.join(choice.unnamed)}",)


def _time_of_choice(choice: Choice) -> str:
    own = ratio_of_times(choice.time_ratio, choice.time_spread, choice.plain_seconds)
    of_all = ratio_of_times(choice.time_ratio_of_all, choice.time_spread_of_all, choice.plain_seconds)
    return f"time beside plain's: {own}" + ("" if is_too_short(choice.plain_seconds) else f"; with all regions: {of_all}")


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
        largest = sorted(part.differing, key=lambda one: -one.distance)
        told = [f"{one.name} {one.reason or f'by {one.absolute:.2g}{_units(one.units)}'}" for one in largest]
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
    return f" ({told} unit{'s' * (units != 1)} in the last place)"


def _listed(names: Iterable[object]) -> str:
    names = list(names)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(str, names[:_SHOWN])) + more
