"""Measures what papers claim, prints it, and writes ``results/papers``.

In a terminal a bar shows the claim that is being measured; elsewhere each claim is a line once it is done.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from benches.papers import NAMES, load, page, plots
from benches.papers.paper import AS_EXPECTED, FAILED, HOLDS, REPRODUCED, Claim, Paper, Row
from benches.papers.progress import Watch

GOOD = frozenset({REPRODUCED, AS_EXPECTED, HOLDS})


def line(paper: Paper, row: Row) -> Text:
    """A row in one line: verdict, claim, what was measured, and what was expected or is said if that is another thing."""
    measured, expected = page.text(row.measured), page.text(row.expected)
    told = [f"{paper.name}: {row.claim}: {measured}"]
    told += [f"expected {expected}"] if expected not in ("", measured) else []
    told += [f"paper: {row.says}"] if row.says and row.verdict not in (REPRODUCED, AS_EXPECTED) else []
    return Text.assemble((row.verdict, _colour(row.verdict)), "  ", "; ".join(told))


def _colour(verdict: str) -> str:
    return "green" if verdict in GOOD else "bold red" if verdict in FAILED else "yellow"


def reproduce(paper: Paper, claims: Sequence[Claim], directory: Path, watch: Watch) -> list[Row]:
    """Measure a paper's claims, showing each as it is done, and write its JSON and figures to ``directory``."""
    rows: list[Row] = []
    started = time.perf_counter()
    for claim in claims:
        watch.doing(f"{paper.name}: {claim.text}")
        rows.append(claim.row())
        watch.done(line(paper, rows[-1]))
    watch.doing(f"{paper.name}: figures")
    figures = list(paper.figures())
    seconds = time.perf_counter() - started
    page.store(directory / f"{paper.name}.json", paper, rows, figures, seconds)
    for figure in figures:
        plots.draw(figure, directory / f"{figure.name}.svg")
    watch.done(Text(f"{paper.name}: {len(rows)} claims and {len(figures)} figures in {seconds:.1f} s", style="bold"))
    return rows


def reproduce_papers(names: Sequence[str] = (), directory: Path | None = None) -> bool:
    """Measure the claims of these papers, or of all, and write them; whether all that must come out does."""
    output = directory or page.place()
    torch.set_num_threads(1)
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or each profile writes lines of its own into the bar
    console = Console(highlight=False)
    papers = [load(name) for name in dict.fromkeys(names or NAMES)]
    claims = [paper.claims() for paper in papers]
    with Watch(console, total=sum(map(len, claims)) + len(papers)) as watch:
        rows = [row for paper, some in zip(papers, claims, strict=True) for row in reproduce(paper, some, output, watch)]
    target = output / "README.md"
    target.write_text(page.page(output), encoding="utf-8")
    failed = [row for row in rows if row.failed]
    for row in failed:
        expected = page.text(row.expected) or str(row.says)
        told = f"{row.claim}: expected {expected}, measured {page.text(row.measured)}"
        console.print(Text.assemble((row.verdict, _colour(row.verdict)), "  ", told), soft_wrap=True)
    console.print(Text(f"{len(rows)} claims, {len(failed)} failed; see {target}"), soft_wrap=True)
    if not directory and output != page.RESULTS:
        console.print(Text(f"not published: {page.origin().fault()}"), soft_wrap=True)
    return not failed
