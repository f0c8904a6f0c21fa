"""``python -m benches.budget``: a network that exceeds memory budgets plain, trained within them by plans and by segments.

Everything is measured, printed, and written to ``results/budget.json``, or to ``results/runs`` where changes are not
committed; with ``--write`` the table goes to docs/comparison.md as well. ``--check`` measures nothing. The status is 1 when
plain fits a budget or a plan does not, and then nothing is written; with ``--check`` when docs/comparison.md has another
table than that of the results, apart from marks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from benches.budget.costs import Row, measured, mebi
from benches.published import PublishedSection, measured_on, older_mark, older_note, store
from conformance.provenance import measured_code
from conformance.reports.generated_section import Section
from conformance.rows.results_file import ROOT

CODE = ["benches.budget.costs:measured"]
HEADINGS = "peak, MiB", "extra time", "layers run again", "extra FLOPs"


def broken(content: Mapping[str, Any]) -> list[str]:
    """What measurements say against the point of the example: each budget is exceeded plain and kept by the plan for it."""
    rows = _rows(content)
    found = [f"plain takes {rows[0].peak} bytes, which fit {budget}" for budget in content["budgets"] if rows[0].peak <= budget]
    missed = (row for row in rows if row.budget is not None and row.peak > row.budget)
    return found + [f"the plan for {row.budget} bytes, {row.plan}, takes {row.peak}" for row in missed]


def _rows(content: Mapping[str, Any]) -> list[Row]:
    return [Row(**row) for row in content["rows"]]


def _table(content: Mapping[str, Any]) -> list[list[str]]:
    """Headings and cells."""
    budgets = content["budgets"]
    lines = [["training", HEADINGS[0], *(f"within {mebi(budget)} MiB" for budget in budgets), *HEADINGS[1:]]]
    for row in _rows(content):
        low, middle, high = (f"{100 * (time - 1):+.0f}" for time in row.times)
        fits = ["yes" if row.peak <= budget else "no" for budget in budgets]
        again = f"{middle} % ({low} to {high})", str(row.kernels), f"{100 * row.flops / content['flops']:+.1f} %"
        name = row.name + older_mark(content, table="rows")
        lines.append([name, f"{row.peak / 2**20:.2f}", *fits, *(again if row.name != "plain" else ("–",) * 3)])
    return lines


def notes(content: Mapping[str, Any]) -> list[str]:
    """What was measured, and on what."""
    rows, planning = _rows(content), content["planning"]
    beyond = max(row.allocated - row.tensors for row in rows)
    measured_how = (
        "Peaks are of a whole step without parameters, their gradients and the input, as torch's allocator counts; up to "
        f"{beyond / 2**10:.0f} KiB of them are no tensors of operators. Times are medians and quartiles of the CPU time of "
        f"{content['rounds']} rounds, beside a plain step in each, on {content['threads']} of the machine's CPUs; "
        f"{content['kernels']} layers have a kernel that can run again. Gradients equal plain's to the last bit. Choosing all "
        f"of the above took {planning['seconds']:.1f} s, and {mebi(planning['peak'])} MiB while layers were measured alone."
    )
    return [measured_how, measured_on(content) + older_note(content)]


def markdown(content: Mapping[str, Any]) -> str:
    """The table and its notes as docs/comparison.md has them."""
    first, *others = _table(content)
    lines = [first, ["---"] * len(first), *others]
    return "\n\n".join(["\n".join(f"| {' | '.join(line)} |" for line in lines), *notes(content)])


SECTION = PublishedSection(
    section=Section("budget", Path("docs") / "comparison.md"),
    results=Path("results") / "budget.json",
    about="the budget table",
    nothing="No measurement is published yet: `python -m benches.budget --write` makes one.",
    markdown=markdown,
)


def show(content: Mapping[str, Any], console: Console) -> None:
    """Print the table, the plans and the notes."""
    first, *others = _table(content)
    table = Table(*first, box=box.SIMPLE_HEAD, pad_edge=False)
    for line in others:
        table.add_row(*line)
    console.print(table)
    for row in _rows(content):
        console.print(f"{row.name}: {row.plan}", markup=False, highlight=False)
    for note in notes(content):
        console.print(note, markup=False, highlight=False)


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command line; 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m benches.budget", description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", action="store_true", help="measure, and put the table into README.md as well")
    action.add_argument("--check", action="store_true", help="fail when README.md does not have the table of the results")
    options = parser.parse_args(arguments)
    origin = measured_code.begin()
    try:
        if options.check:
            return SECTION.check(root)
        if options.write:
            SECTION.require_markers(root)
            origin.require()
        torch.set_num_threads(1)  # as in the example
        fingerprints = {"table": {"rows": measured_code.of_roots(origin.sources, CODE)}}
        content = json.loads(json.dumps({**measured(), "suite": origin.suite, "fingerprints": fingerprints}))
        console = Console()
        show(content, console if console.is_terminal else Console(width=180))  # a log has no width of its own
        if found := broken(content):
            raise ValueError("; ".join(found))
        fault = origin.fault()
        path = root / "results" / "runs" / f"budget-{time.strftime('%Y%m%d-%H%M%S')}.json" if fault else root / SECTION.results
        store(path, content)
        if fault:
            sys.stderr.write(f"{path} is not published: {fault}\n")
            return int(options.write)
        if options.write:
            SECTION.write(root, content)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0
