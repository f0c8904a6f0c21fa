"""The end of a run: what is kept and what is not, by tier and consequence, and where each failure is shown.

Failures are listed with the worst consequence first and, within it, the most ordinary law first.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import itertools
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import impls
from conformance import laws
from conformance.judging.law import LAWS
from conformance.judging.result import is_worse
from conformance.reports import ranking
from conformance.reports.nearest_declaration import Nearest, nearest
from conformance.reproducers import script_files
from conformance.reproducers.script import binding_in
from conformance.reproducers.script_syntax import has_threads, parts
from conformance.rows.option_values import command
from conformance.rows.results_file import Row, claim, is_unexpected, is_untested

LINES, SCRIPTS = 30, 3  # lines of the summary, and failures that are printed with scripts above it, at most
MADE_SMALL = 15  # scripts of a run that is not published, at most: about as many as the summary has lines for
NotTaken = Mapping[str, Set[str]]  # by implementation, options that it does not take
NAMED = 4  # laws that are named in a line, at most


@dataclass(frozen=True)
class Run:
    """A run that is over: its rows, the file that they are in, and what to do next.

    ``again`` gives the command that repeats the run by another implementation's claims. ``like`` is the one by whose claims
    implementations without a declaration were judged. ``not_taken`` has, by implementation, options that it does not take.
    """

    rows: Sequence[Row]
    results: Path
    again: Callable[[str], str]
    like: str
    warnings: Sequence[str] = ()
    declared: Sequence[str] = ()  # lines that say where declarations were written
    not_taken: NotTaken = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The implementations that were judged."""
        return list(dict.fromkeys(row["impl"] for row in self.rows))

    def of(self, name: str) -> list[Row]:
        """The rows of an implementation."""
        return [row for row in self.rows if row["impl"] == name]

    @functools.cached_property
    def nearest(self) -> Mapping[str, Nearest]:
        """The implementation whose declaration fits best, for each one that declares nothing."""
        found = {name: nearest(self.of(name), self.like) for name in self.names}
        return {name: one for name, one in found.items() if one}

    @functools.cached_property
    def failures(self) -> list[Row]:
        """Verdicts worse than declared in the order of the summary, except those that one line reports for many laws.

        Among equally bad and ordinary laws, those of the family with the most of them come first: the fault is likely there.
        """
        within = {id(row) for one in self.nearest.values() for row in one.within}
        told_apart = [row for row in self.rows if is_worse(row) and not self.option(row) and not row.get(ranking.ROUNDED)]
        faults = Counter((id(row) in within, row.get("family"), *ranking.urgency(row)[:2]) for row in told_apart)

        def place(row: Row) -> tuple[Any, ...]:
            effect, tier, *size = ranking.urgency(row)
            is_within = id(row) in within
            return is_within, effect, tier, -faults[is_within, row.get("family"), effect, tier], *size

        return sorted(told_apart, key=place)

    @property
    def first(self) -> set[script_files.Key]:
        """The failures that the summary names, but for those with threads, as these have to meet in each of many runs.

        To make the scripts of all failures small takes minutes where much is wrong.
        """
        alone = (row for row in self.failures if not has_threads(row["program"]))
        return {script_files.key_of(row) for row in itertools.islice(alone, MADE_SMALL)}

    def option(self, row: Row) -> str:
        """The option that an implementation does not take, if that is why it raises in every case of a law; else ""."""
        raises = row["verdict"] in ("refuses", "crashes") and row.get("counts", {}).keys() <= {row["verdict"]}
        refused = self.not_taken.get(row["impl"], ()) if raises else ()
        return next((name for name in passed(row["law"]) if name in refused), "")


def passed(law: str) -> list[str]:
    """What a law's programs pass to a checkpoint besides positional arguments: options, including those of capabilities."""
    found = LAWS.get(law)
    return [] if found is None else [*found.options, *(name.replace("-", "_") for name in sorted(found.needs))]


def summary(run: Run) -> list[str]:
    """At most ``LINES`` lines: what is kept, what is not by tier and consequence, the failures, and the next command."""
    lines = [f"smoke check: {warning}" for warning in run.warnings if any(map(is_unexpected, run.rows))]
    lines += _counts(run.names[0], run.rows) if len(run.names) == 1 else ranking.lines(run.rows)
    for name in run.names:
        lines += _notes(run, name)
    as_expected = [] if any(map(is_unexpected, run.rows)) else ["all verdicts are as expected"]
    end = [*as_expected, f"results: {_shown(run.results)}", *run.declared]
    failures = [_failure(run.results, row) for row in run.failures]
    if failures:
        broken = [*dict.fromkeys(row["impl"] for row in run.failures)][:SCRIPTS]
        end += [f"all failures of {name}: {command('report', '--show', name, '--results', run.results)}" for name in broken]
        room = max(LINES - len(lines) - len(end) - 1, 1)
        if len(failures) > room:
            failures = [*failures[: room - 1], f"  and {len(failures) - room + 1} others"]
        near = run.nearest.get(run.names[0]) if len(run.names) == 1 else None
        beyond = [f"first those beyond the limits of {near.name}"] if near and near.beyond else []
        lines += [f"failures, {', '.join([*beyond, 'worst and most ordinary'])} first:", *failures]
    return [*lines, *end]


def first_failures(run: Run, told: Callable[[Row], str]) -> list[str]:
    """The first failures in the order of the summary, each in the words of ``told``, with the path of its script."""
    first = run.failures[:SCRIPTS]
    ends = [f"\n\nscript: {_shown(path)}" if (path := script_files.file_of(run.results, row)) else "" for row in first]
    return [
        f"{number}. {ranking.effect(row)}, {ranking.tier(row)}: law {row['law']}\n{told(row)}{end}"
        for number, (row, end) in enumerate(zip(first, ends, strict=True), 1)
    ]


def program_in(script: str) -> str:
    """The program of a script, without the lines that bind and compare; the whole text if it is no such script."""
    try:
        return parts(script, binding_in(script)).program
    except ValueError:
        return script


def nothing_selected(expression: str) -> str:
    """A message with names like those in a ``-k`` expression that selects nothing; "" without an expression."""
    for module in pkgutil.iter_modules(laws.__path__):
        importlib.import_module(f"{laws.__name__}.{module.name}")
    names = [*LAWS, *impls.names(), *impls.PEERS]
    asked = [word for word in re.findall(r"[\w.-]+", expression) if word not in ("and", "or", "not")]
    near = [name for word in asked for name in difflib.get_close_matches(word, names, 3, cutoff=0.4)]
    told = f"; nearest of {len(names)} names: {', '.join(dict.fromkeys(near))}" if near else ""
    return f"-k {expression!r} selects no law of these implementations{told}" if asked else ""


def _counts(name: str, rows: Sequence[Row]) -> list[str]:
    """What an implementation keeps, and all that it does not, whether that is declared or not."""
    lines = [f"  {what}: {ranking.by_tier(counts)}" for what, counts in ranking.effects(rows).items()]
    return [f"{name}: {ranking.kept(rows)}", *lines]


def _notes(run: Run, name: str) -> list[str]:
    """Lines that each report many laws."""
    unexpected = [row for row in run.of(name) if is_unexpected(row)]
    better = [row for row in run.of(name) if row["verdict"] != row["expected"] and not is_unexpected(row)]
    about = "" if len(run.names) == 1 else f"{name} "
    lines = [f"{about}better than {run.like}: {_named(better)}"] if better else []
    options = Counter(found for row in unexpected if is_worse(row) and (found := run.option(row)))
    if options:
        named = ((option.replace("keyword_arguments", "arguments by keyword"), its) for option, its in options.most_common())
        told = [f"{option} ({_laws(count)})" for option, count in named]
        lines.append(f"{about}does not take: {', '.join(told)}")
    if rounded := sum(bool(row.get(ranking.ROUNDED)) for row in unexpected):
        told_of = f"{_laws(rounded)} {'differs' if rounded == 1 else 'differ'} in the last bits only"
        lines.append(f"{about}does not add in plain's order: {told_of} (capability exact-sums)")
    if untested := [row for row in unexpected if is_untested(row)]:
        why = Counter(reason for row in untested for reason in row["unproven"]).most_common(1)
        told_why = f"; of most: {why[0][0]}" if why else ""
        lines.append(f"{about}not tested, since too few cases prove anything: {_named(untested)}{told_why}")
    if milder := [row for row in unexpected if not is_worse(row) and not is_untested(row)]:
        lines.append(f"{about}better than {claim(milder[0])}: {_named(milder)}")
    if near := run.nearest.get(name):
        counts = f"Beyond its known limits: {len(near.beyond)}. Within them: {len(near.within)}"
        closer = f" ({near.closer}, by others, fits {_laws(near.few)} better: too few to name it)" if near.closer else ""
        fits = f"nearest of all declarations, compared under {_laws(len(run.of(name)))}: {near.name}{closer}"
        lines.append(f"{about}{fits}. {counts}. Judge by its claims: {run.again(near.name)}")
    return lines


def _named(rows: Sequence[Row]) -> str:
    """The names of the first laws, and how many others there are."""
    more = f" and {len(rows) - NAMED} others" if len(rows) > NAMED else ""
    return f"{', '.join(row['law'] for row in rows[:NAMED])}{more}"


def _failure(results: Path, row: Row) -> str:
    """A failure in a line: its effect, its tier, and the path of its script, whose name has the law."""
    path = script_files.file_of(results, row)
    where = f"{row['law']}: {row['verdict']}, {row['cause']}" if path is None else _shown(path)
    return f"  {ranking.effect(row)}, {ranking.tier(row)}: {where}"


def _shown(path: Path) -> str:
    """A path, relative to the current directory if it is inside."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _laws(count: int) -> str:
    return f"{count} {'law' if count == 1 else 'laws'}"
