"""The results of a comparison: as a file, as tables on the terminal, and as the table of docs/comparison.md, with plots."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benches.compare import plots
from benches.models.workloads import FAKE
from benches.published import PublishedSection, measured_on, older_mark, older_note
from conformance.provenance.staleness import Now
from conformance.reports.generated_section import Section

SHOWN = "attention"  # the workload whose table is in docs/comparison.md
NONE = "–"
SEGMENTS = "chen-sqrt"  # the contender
HEADINGS = (
    *("contender", "time / plain", "time / ideal", "peak", "kept", "FLOPs again", "operators again"),
    *("calls", "Python bytes a saved tensor", "gradients"),
)
ENOUGH = 10  # rounds below which a median says little
LEGEND = (
    "time / plain, time / ideal: median and quartiles of the ratios, round by round; the ideal is plain and exactly the "
    "forward work that must be repeated. peak, kept: bytes that a step adds at most, and that are there once forward is over. "
    "FLOPs again, operators again: executed beyond plain's; in brackets the ideal's if "
    "others. calls: of blocks in a step, forward and recomputation. Python bytes a saved tensor: what Python allocated in "
    "forward and still holds after it, divided by the tensors that plain saves. gradients: equal to plain's to the last bit, "
    "close within rounding, or differ."
)
Stored = Mapping[str, Any]


def size(count: int) -> str:
    """Bytes in the unit that suits them."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(count) >= 2**power:
            return f"{count / 2**power:.2f} {unit}"
    return f"{count} B"


def quartiles_of(quartiles: Sequence[float] | None) -> str:
    """The median, and the others in brackets."""
    if quartiles is None:
        return NONE
    low, middle, high = quartiles
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def _beside(count: int | None, ideal: int | None) -> str:
    """A count, and what it is at the ideal."""
    if count is None:
        return NONE
    return f"{count:,}" if ideal in (None, count) else f"{count:,} ({ideal:,})"


def cells(row: Stored) -> list[str]:
    """The cells of a row under HEADINGS."""
    if row["status"] != "measured":
        return [row["contender"], row["status"], *[NONE] * 7, row["detail"]]
    memory, repeated, ideal = row["allocated"] or row["ledger"], row["repeated"] or {}, row["ideal"] or {}
    python = NONE if row["python_bytes"] is None else f"{row['python_bytes']:.0f}"
    return [
        row["contender"],
        quartiles_of(row["times"]),
        quartiles_of(row["ideal_times"]),
        size(memory["peak"]) if memory else NONE,
        size(memory["kept"]) if memory else NONE,
        _beside(repeated.get("flops"), ideal.get("flops")),
        _beside(repeated.get("operators"), ideal.get("operators")),
        NONE if row["calls"] is None else str(row["calls"]),
        python,
        row["gradients"],
    ]


def show(name: str, rows: Sequence[Stored], console: Console) -> None:
    """Print the table of a workload."""
    table = Table(*HEADINGS, title=name, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        table.add_row(*cells(row), style="" if row["status"] == "measured" else "red")
    console.print(table)


def explained(content: Stored) -> Iterator[str]:
    """What the columns of the tables are, and what medians of few rounds are worth."""
    yield LEGEND
    if content["device"] == FAKE:
        yield (
            "device fake: no kernel runs. Bytes are of the storages that operators would make, without workspaces; there are "
            "no times, and gradients have no values that could be compared"
        )
    if content["rounds"] < ENOUGH:
        yield f"{content['rounds']} rounds: medians and quartiles of fewer than {ENOUGH} say little; publish none of them"


def ending(content: Stored) -> Iterator[str]:
    """What a reader must know beside the tables: what was left out, and what is void."""
    for one in content["left_out"]:
        yield f"left out: {one['name']}: {one['reason']}"
    for row in content["rows"]:
        if row["status"] != "measured":
            yield f"{row['status']}: {row['contender']} on {row['workload']}: {row['detail']}"
    yield from _extra_time(content)


def _extra_time(content: Stored) -> Iterator[str]:
    """What segments as Chen et al. cut them cost in time, where they were timed, beside what they must."""
    for row in content["rows"]:
        about = content["workloads"][row["workload"]]
        if row["contender"] == SEGMENTS and row["status"] == "measured" and row["ideal_times"] and not about["x"]:
            low, middle, high = (share - 1 for share in row["times"])
            of_ideal = row["times"][1] / row["ideal_times"][1] - 1
            flops = f", {row['ideal']['flops'] / about['flops']:+.0%} of FLOPs" if about["flops"] else ""
            yield (
                f"extra time of {SEGMENTS} on {row['workload']}: {middle:+.0%} ({low:+.0%} to {high:+.0%}); the ideal's: "
                f"about {of_ideal:+.0%}{flops}; were every layer run again, and backward twice forward: {1 / (1 + 2):+.0%}"
            )


def publish(root: Path, content: Stored) -> None:
    """Draw the plots, and put the table of the CPU into docs/comparison.md, with marks at what is older than the code."""
    plots.draw_all(Now().of_table(content), root / "results" / "compare")
    if content["device"] == "cpu" and content["size"] == "S":
        SECTION.write(root, content)


def redraw(root: Path) -> None:
    """Draw plots and put the table into docs/comparison.md anew, from all published results. ValueError without any."""
    found = sorted((root / "results").glob("compare-*.json"))
    for path in found:
        publish(root, json.loads(path.read_text(encoding="utf-8")))
    if not found:
        raise ValueError(f"nothing is published in {root / 'results'}: python -m reprise compare --write")


def markdown(content: Stored) -> str:
    """The table of one workload, its notes and links to the plots, as docs/comparison.md has them."""
    heads = "contender", "time / plain", "time / ideal", "peak", "kept after forward", "FLOPs again"
    rows = [row for row in content["rows"] if row["workload"] == SHOWN]
    lines = [heads, ["---"] * len(heads), *(_short(row, content) for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    names = [plot.name for plot in plots.figures(content)]
    links = ", ".join(f"[{name.split('-', 1)[1]}](../results/compare/{name}.svg)" for name in names)
    return "\n\n".join([table, *notes(content), f"Plots: {links}."])


def _short(row: Stored, content: Stored) -> list[str]:
    name, times, ideal_times, peak, kept, flops, *_ = cells(row)
    older = older_mark(content, contender=row["contender"], workload=row["workload"])
    return [f"`{name}`{older}", times, ideal_times, peak, kept, flops]


def notes(content: Stored) -> list[str]:
    """What was measured, and on what."""
    about = content["workloads"][SHOWN]
    how = (
        f"Workload `{SHOWN}`: {about['blocks']} blocks, each a region of every checkpoint. Times are CPU time on "
        f"{content['threads']} thread, medians and quartiles over {content['rounds']} rounds, each of which also times plain "
        "and the ideal: plain, and exactly the forward work that the plan must repeat. Bytes are the allocator's. FLOPs in "
        "brackets are the ideal's where they differ from what was measured. A row is void unless gradients equal plain's in "
        "the same run, to the last bit."
    )
    left_out = [f"{one['name']} ({one['reason'].partition(';')[0]})" for one in content["left_out"]]
    told = how + (f" Left out: {', '.join(left_out)}." if left_out else "")
    return [told, measured_on(content) + older_note(content)]


SECTION = PublishedSection(
    section=Section("compare", Path("docs") / "comparison.md"),
    results=Path("results") / "compare-cpu.json",
    about="the comparison",
    nothing="No measurement is published yet: `python -m reprise compare --write` makes one.",
    markdown=markdown,
)


def check(root: Path) -> str:
    """What is wrong with the table in docs/comparison.md, apart from marks, or which plots are missing; "" if nothing is."""
    path = root / SECTION.results
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    names = [] if content is None else [plot.name for plot in plots.figures(content)]
    missing = [name for name in names if not (root / "results" / "compare" / f"{name}.svg").exists()]
    if not missing:
        return SECTION.check(root)
    return f"plots are missing: {', '.join(missing)}: python -m reprise compare --write"
