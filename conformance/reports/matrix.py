"""The matrix: laws by family × implementations, for a terminal and for Markdown."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from conformance.provenance.staleness import MARK, MEANING, count, marked, note
from conformance.reports import ranking
from conformance.rows.results_file import VERDICTS, Results, Row, is_unexpected, kept
from conformance.rows.torch_releases import by_subject, release

SYMBOLS: Mapping[str, str] = {"agrees": "✓", "refuses": "–", "diverges": "≠", "crashes": "!", "hangs": "∞"}
STYLES: Mapping[str, str] = {
    "agrees": "green",
    "refuses": "yellow",
    "diverges": "red",
    "crashes": "magenta",
    "hangs": "cyan",
}
UNEXPECTED = "*"
CONFLICT = "conflict"
ESCAPED = f"\\{UNEXPECTED}"  # in Markdown
LEGEND = "  ".join(f"{SYMBOLS[name]} {name}" for name in VERDICTS) + f"  {UNEXPECTED} unexpected"
MARKDOWN_LEGEND = LEGEND.replace(UNEXPECTED, ESCAPED)


def terminal(rows: Iterable[Row], *, width: int | None = None, color: bool = False) -> str:
    """What is kept by tier, and the matrix of laws × implementations, one table a device, followed by legend and totals.

    A cell has the verdict's symbol, the number of cases with that verdict (if not all have it), the number of cases, and a
    mark if the verdict is not as declared or too few cases prove anything. Tables are drawn by rich, or as plain text if rich
    is missing. ``width`` is the terminal's; without it a table is as wide as it needs to be.
    """
    rows = list(rows)
    if not rows:
        raise ValueError("there are no rows to show")
    groups = [
        _of(rows, device=device, subject=kind) for device in _distinct(rows, "device") for kind in _distinct(rows, "subject")
    ]
    tables = [_table(group, group[0]["device"], width, color) for group in groups if group]
    counts = Counter(row["verdict"] for row in rows)
    verdicts = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    cases, unexpected = sum(row["cases"] for row in rows), sum(map(is_unexpected, rows))
    return "\n".join([*ranking.lines(rows), *tables, LEGEND, f"verdicts: {verdicts} ({cases} cases); {unexpected} unexpected"])


def pace(rows: Iterable[Row], laws: int = 5) -> str:
    """Two lines: cases judged per second of one worker, and the laws that took longest, over all implementations."""
    rows = list(rows)
    seconds: Counter[str] = Counter()
    for row in rows:
        seconds[row["law"]] += row.get("seconds", 0.0)
    spent, cases = sum(seconds.values()), sum(row["cases"] for row in rows)
    speed = f", {cases / spent:.0f} a second" if spent else ""
    slowest = ", ".join(f"{law} {taken:.1f}" for law, taken in seconds.most_common(laws))
    return f"pace: {cases} cases in {spent:.0f} s of work{speed}\nslowest laws, seconds: {slowest}"


def markdown(results: Results) -> str:
    """The matrix of families × implementations, one table a kind, laws counted by verdict, and what it was measured on."""
    parts = []
    for device in _distinct(results.rows, "device"):
        rows = _of(results.rows, device=device)
        tables = [_markdown_table(_of(rows, subject=kind)) for kind in _distinct(rows, "subject")]
        measured = [_measured_on(run.header, device) for run in results.runs or (results,) if _of(run.rows, device=device)]
        parts += [*measured, *tables]
        if older := count(rows):
            parts[-1] += marked(f"\n\n{MEANING}: {older} of {len(rows)} verdicts")
    return "\n\n".join([*parts, MARKDOWN_LEGEND])


def laws_markdown(results: Results) -> str:
    """The matrix of laws × implementations, each with the number of cases, and what it was measured on."""
    names, rows = _distinct(results.rows, "impl"), results.rows
    lines = [["law", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    lines += [
        [f"`{law}`", *(" ".join(map(_markdown_cell, _of(rows, law=law, impl=name))) for name in names)]
        for law in sorted(_distinct(rows, "law"))
    ]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    older = marked(f"\n\n{MEANING}: {n} of {len(rows)} verdicts") if (n := count(rows)) else ""
    return f"{_measured_on(results.header, rows[0]['device'])}\n\n{table}{older}\n\n{MARKDOWN_LEGEND}"


def _markdown_cell(row: Row) -> str:
    return _cell(row).replace(UNEXPECTED, ESCAPED) + (marked(f" {MARK}") if count([row]) else "")


def differences(results: Results, other: Results) -> str:
    """A table of the verdicts that differ from those of the same implementations with another release of torch."""
    mine, theirs = by_subject(results.rows), by_subject(other.rows)
    names = [f"torch {release(one.header['versions']['torch'])}" for one in (other, results)]
    measured = " ".join(
        _measured_on(run.header, device)
        for device in _distinct(results.rows, "device")
        for run in results.runs or (results,)
        if _of(run.rows, device=device)
    )
    judged = {(impl, device) for _, impl, device in mine}
    changed = [about for about, verdicts in mine.items() if about in theirs and theirs[about] != verdicts]
    compared = sum(about in theirs for about in mine)
    older = marked(f" {MEANING}: {n} of {len(results.rows)} verdicts.") if (n := count(results.rows)) else ""
    same = f"{compared - len(changed)} of {compared} verdicts with {names[1]} are those with {names[0]}"
    lines = [["law", "implementation", *names], ["---"] * 4]
    lines += [[about[0], f"`{about[1]}`", *(", ".join(one[about]) for one in (theirs, mine))] for about in changed]
    table = "\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) if changed else ""
    gone = [about for about in theirs if about not in mine and about[1:] in judged]
    new = [about for about in mine if about not in theirs]
    missing = "".join(_judged_once(abouts, name) for abouts, name in ((gone, names[0]), (new, names[1])))
    return f"{measured}{older} {same}{':' if changed else '.'}{table}{missing}"


def _judged_once(abouts: Sequence[tuple[str, str, str]], release_name: str) -> str:
    """A paragraph about the verdicts that exist with one of two releases alone; empty if there are none."""
    if not abouts:
        return ""
    laws = ", ".join(f"`{law}`" for law in dict.fromkeys(law for law, _, _ in abouts))
    verdicts = "1 verdict" if len(abouts) == 1 else f"{len(abouts)} verdicts"
    return f"\n\nJudged with {release_name} alone ({verdicts}): {laws}."


def _markdown_table(rows: Sequence[Row]) -> str:
    names = _distinct(rows, "impl")
    lines = [["family", *(f"`{name}`" for name in names)], ["---"] * (len(names) + 1)]
    for family in _families(rows):
        members = _of(rows, family=family)
        laws = len(_distinct(members, "law"))
        cells = [_tally(_of(members, impl=name)) for name in names]
        lines.append([f"{family} ({laws} {'law' if laws == 1 else 'laws'})", *cells])
    lines.append(["cases", *(str(sum(row["cases"] for row in _of(rows, impl=name))) for name in names)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _tally(rows: Sequence[Row]) -> str:
    """``✓ 12 ≠ 2`` and so on, followed by how many verdicts are unexpected, in conflict, or older."""
    counts = Counter(row["verdict"] for row in rows)
    parts = [f"{SYMBOLS[name]} {counts[name]}" for name in VERDICTS if counts[name]]
    if unexpected := sum(map(is_unexpected, rows)):
        parts.append(f"{ESCAPED} {unexpected}")
    if conflicts := sum(count > 1 for count in Counter(row["law"] for row in rows).values()):
        parts.append(f"{CONFLICT} {conflicts}")
    older = marked(f"&nbsp; {MARK}&nbsp;{n}") if (n := count(rows)) else ""
    return "&nbsp; ".join(part.replace(" ", "&nbsp;") for part in parts) + older


def _measured_on(head: Mapping[str, Any], device: str) -> str:
    """One sentence: device, machine, versions, profile, seed, commit, date."""
    machine, suite, versions = head["machine"], head["suite"], head["versions"]
    where = [machine["accelerator"], machine["processor"], f"{machine['cpus']} CPUs", machine["platform"]]
    with_versions = ", ".join(f"{name} {version}" for name, version in versions.items())
    commit = suite["commit"][:10] + (" with uncommitted changes" if suite["dirty"] else "")
    return (
        f"Device `{device}` on {', '.join(part for part in where if part)}; {with_versions}; "
        f"profile {head['profile']}, seed {head['seed']}, suite at {commit}, {head['date'][:10]}"
        f"{f'; {told}' if (told := kept(head)) else ''}."
    ) + (marked(f" {MARK} {gone}.") if (gone := note(head)) else "")


def _table(rows: Sequence[Row], device: str, width: int | None, color: bool) -> str:
    try:
        import rich  # noqa: F401  # optional: the suite runs where only torch, pytest and hypothesis are installed
    except ModuleNotFoundError:
        return _plain_table(rows, device)
    return _rich_table(rows, device, width, color)


def _rich_table(rows: Sequence[Row], device: str, width: int | None, color: bool) -> str:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    names = _distinct(rows, "impl")
    table = Table(title=f"device {device}", title_justify="left", show_edge=False)
    table.add_column("law", overflow="fold", min_width=24)
    for name in names:
        longest = max((len(_cell(row)) for row in _of(rows, impl=name)), default=0)
        table.add_column(name.replace("-", "-\n").replace(":", ":\n"), no_wrap=True, min_width=longest)
    for family in _families(rows):
        members = _of(rows, family=family)
        table.add_section()
        table.add_row(Text(family, "bold"))
        for law in _distinct(members, "law"):
            cells = [
                Text(" ").join(Text(_cell(row), STYLES[row["verdict"]]) for row in _of(members, law=law, impl=name))
                for name in names
            ]
            table.add_row(Text(f"  {law}"), *cells)
    natural = 10_000
    console = Console(
        file=io.StringIO(), force_terminal=color, no_color=not color, width=width or natural, legacy_windows=False
    )
    with console.capture() as captured:
        console.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _plain_table(rows: Sequence[Row], device: str) -> str:
    names = _distinct(rows, "impl")
    lines = [[f"device {device}", *names]]
    for family in _families(rows):
        members = _of(rows, family=family)
        lines.append([family, *[""] * len(names)])
        lines += [
            [f"  {law}", *(" ".join(map(_cell, _of(members, law=law, impl=name))) for name in names)]
            for law in _distinct(members, "law")
        ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _cell(row: Row) -> str:
    count = row.get("counts", {}).get(row["verdict"], row["cases"])
    of = "" if count == row["cases"] else f"{count}/"
    return f"{SYMBOLS[row['verdict']]} {of}{row['cases']}" + (UNEXPECTED if is_unexpected(row) else "")


def _of(rows: Iterable[Row], **wanted: str) -> list[Row]:
    return [row for row in rows if all(row.get(key, "") == value for key, value in wanted.items())]


def _distinct(rows: Iterable[Row], key: str) -> list[str]:
    """The values of a column in the order in which they first come."""
    return list(dict.fromkeys(row.get(key, "") for row in rows))


def _families(rows: Iterable[Row]) -> list[str]:
    return _distinct(rows, "family")
