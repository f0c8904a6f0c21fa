"""``python -m benches.reproduce [NAME ...]``: measure what papers claim, print it, and write ``results/papers``.

The status is 1 when an exact claim does not come out, 2 for a name that is not a paper's.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from benches.papers import NAMES, load, page, plots
from benches.papers.paper import NOT_REPRODUCED, REPRODUCED, Paper, Row

COLOURS = {REPRODUCED: "green", NOT_REPRODUCED: "bold red"}


def reproduce(paper: Paper, directory: Path, console: Console) -> list[Row]:
    """Measure a paper's claims, showing each as it is done, and write its JSON and figures to ``directory``."""
    table = Table(title=f"{paper.title} ({paper.source})", box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for heading in ("claim", "paper says", "standing", "measured", "verdict", "note"):
        table.add_column(heading, overflow="fold", style="dim" if heading == "note" else "")
    rows: list[Row] = []
    started = time.perf_counter()
    with Live(table, console=console, refresh_per_second=4, vertical_overflow="visible"):
        for part in (paper.exact, paper.more):
            for row in part():
                rows.append(row)
                verdict = f"[{COLOURS.get(row.verdict, 'yellow')}]{row.verdict}"
                cells = map(escape, (row.claim, page.text(row.says), row.standing, page.text(row.measured)))
                table.add_row(*cells, verdict, escape(row.note))
        table.caption = f"{paper.name}: drawing"
        figures = list(paper.figures())
        seconds = time.perf_counter() - started
        table.caption = f"{paper.name}: {len(rows)} claims and {len(figures)} figures in {seconds:.1f} s"
    for figure in figures:
        plots.draw(figure, directory / f"{figure.name}.svg")
    page.store(directory / f"{paper.name}.json", paper, rows, figures, seconds)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benches.reproduce", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"papers; all without any: {', '.join(NAMES)}")
    parser.add_argument("--output", type=Path, default=page.RESULTS, metavar="DIR", help="where results go")
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no paper {name!r}; there are {', '.join(NAMES)}")
    torch.set_num_threads(1)
    console = Console()
    if not console.is_terminal:
        console = Console(width=180)  # a log has no width of its own
    names = options.names or NAMES
    rows = [row for name in dict.fromkeys(names) for row in reproduce(load(name), options.output, console)]
    target = options.output / "README.md"
    target.write_text(page.page(options.output), encoding="utf-8")
    failed = [row for row in rows if row.failed]
    for row in failed:
        said = escape(f"{row.claim}: {page.text(row.says)}, measured {page.text(row.measured)}")
        console.print(f"[bold red]not reproduced:[/] {said}")
    console.print(f"{len(rows)} claims, {len(failed)} exact ones not reproduced; see {target}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
