"""The small matrix of README.md: one line an implementation, its laws counted by verdict."""

from __future__ import annotations

from collections import Counter

from conformance.provenance.staleness import MARK, MEANING, count, marked
from conformance.reports.matrix import SYMBOLS
from conformance.rows.results_file import VERDICTS, Results
from conformance.rows.torch_releases import release

BASELINE = "plain"  # what all others are compared with


def markdown(results: Results) -> str:
    """The table of one run, and what it was measured with."""
    rows = [row for row in results.rows if row["impl"] != BASELINE]
    shown = [name for name in VERDICTS if any(row["verdict"] == name for row in rows)]
    lines = [["implementation", "laws", *(f"{SYMBOLS[name]} {name}" for name in shown)], ["---", *["---:"] * (len(shown) + 1)]]
    for name in dict.fromkeys(row["impl"] for row in rows):
        its = [row for row in rows if row["impl"] == name]
        counts = Counter(row["verdict"] for row in its)
        older = marked(f" {MARK}") if count(its) else ""
        lines.append([f"`{name}`{older}", str(len(its)), *(str(counts[verdict]) for verdict in shown)])
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    head = results.header
    measured = f"torch {release(head['versions']['torch'])} on the CPU, profile {head['profile']}, {head['date'][:10]}."
    return f"{table}\n\n{measured}" + (marked(f" {MEANING}.") if count(rows) else "")
