"""The results of compiled steps: as tables on the terminal, and as a table of docs/comparison.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benches.compare.report import NONE, quartiles_of, size
from benches.published import PublishedSection, measured_on, older_mark, older_note
from conformance.reports.generated_section import Section

HEADINGS = "contender", "time / compiled plain", "peak", "kept after forward", "compile time", "gradients"
Stored = Mapping[str, Any]


def cells(row: Stored) -> list[str]:
    """The cells of a row under HEADINGS; the reason in the last one if it was not measured."""
    seconds = NONE if row["compile_seconds"] is None else f"{row['compile_seconds']:.1f} s"
    if row["status"] != "measured":
        return [row["contender"], row["status"], NONE, NONE, seconds, row["detail"]]
    memory = row["allocated"]
    return [
        row["contender"],
        quartiles_of(row["times"]),
        size(memory["peak"]),
        size(memory["kept"]),
        seconds,
        row["gradients"],
    ]


def show(name: str, rows: Sequence[Stored], console: Console) -> None:
    """Print the table of a workload."""
    table = Table(*HEADINGS, title=name, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row), style="" if row["status"] == "measured" else "red")
    console.print(table)


def markdown(content: Stored) -> str:
    """The table of all workloads and its notes, as docs/comparison.md has them."""
    heads = ["workload", *HEADINGS]
    lines = [heads, ["---"] * len(heads), *(_line(row, content) for row in content["rows"])]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([table, *notes(content), measured_on(content) + older_note(content)])


def _line(row: Stored, content: Stored) -> list[str]:
    name, *others = (cell.replace("|", "\\|") for cell in cells(row))
    older = older_mark(content, contender=row["contender"], workload=row["workload"])
    return [row["workload"], f"`{name}`{older}", *others]


def notes(content: Stored) -> list[str]:
    """What was measured, and what was left out."""
    unit = "GPU" if content["device"].startswith("cuda") else "CPU"
    how = (
        f"Every step but `plain-eager` is compiled whole (`fullgraph=True`, backend {content['backend']}). Times are {unit} "
        f"time on {content['threads']} thread: medians and quartiles over {content['rounds']} rounds of the ratio to the "
        "compiled plain step, which runs in each of them. Bytes are the allocator's. `budget-F` is plain with "
        "`activation_memory_budget=F`; 1, the default, is plain. Compile time is CPU time of the first step, forward and "
        "backward, with empty caches and with the compilers that it starts; the times of steps are without it. Random "
        "numbers are drawn as in eager steps (`fallback_random`), so that gradients can be compared with those of the eager "
        "plain step: a row is void if they are not close, and raises if there is an error, also because there is no full graph."
    )
    left_out = [f"{one['name']} ({one['reason'].partition(chr(10))[0]})" for one in content["left_out"]]
    return [how + (f" Left out: {'; '.join(left_out)}." if left_out else "")]


SECTION = PublishedSection(
    section=Section("compiled", Path("docs") / "comparison.md"),
    results=Path("results") / "compiled-cpu.json",
    about="the comparison of compiled steps",
    nothing="No measurement is published yet: `python -m reprise compare --compiled --write` makes one.",
    markdown=markdown,
    bench="compare --compiled",
)
