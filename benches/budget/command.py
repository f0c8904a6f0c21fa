"""A network too large for memory budgets, trained within them by plans and by segments: measured, shown and stored."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
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
    """Where measurements contradict the example, in which plain exceeds each budget and the plan for it keeps within."""
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
    nothing="No measurement is published yet: `python -m reprise budget --write` makes one.",
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


def run_bench(*, publish: bool = False, root: Path = ROOT) -> None:
    """Measure, print, and write ``results/budget.json``, or a file in ``results/runs`` where changes are not committed.

    To ``publish`` is to put the table into docs/comparison.md as well. Raises ValueError where plain fits a budget or a plan
    does not, and then nothing is written, and for a checkout from which nothing may be published.
    """
    origin = measured_code.begin()
    if publish:
        SECTION.require_markers(root)
        origin.require()
    torch.set_num_threads(1)  # as in the example
    fingerprints = {"table": {"rows": measured_code.of_roots(origin.sources, CODE)}}
    content = json.loads(json.dumps({**measured(), "suite": origin.suite, "fingerprints": fingerprints}))
    console = Console()
    show(content, console if console.is_terminal else Console(width=180))  # a log has no width of its own
    if found := broken(content):
        raise ValueError("; ".join(found))
    if fault := origin.fault():
        path = root / "results" / "runs" / f"budget-{time.strftime('%Y%m%d-%H%M%S')}.json"
        store(path, content)
        if publish:
            raise ValueError(f"{path} is not published: {fault}")
        console.print(f"{path} is not published: {fault}", markup=False, highlight=False, soft_wrap=True)
        return
    store(root / SECTION.results, content)
    if publish:
        SECTION.write(root, content)
