"""The page of results: one HTML file with every verdict, what was seen, and the script that shows it.

Run as ``python -m conformance.reports.page`` to write ``results/index.html`` from the published results, or with ``--check``,
which ends with status 1 when the file is another one. The page is made from the results alone, but for marks at what is
older than the code, which ``--check`` ignores: it says when and on what they were measured, and asks nothing of a network.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

import impls
from conformance.provenance.staleness import BEGIN, CELL, END, MARK, MEANING, Now, unmarked
from conformance.reports import docs_lists, report
from conformance.reports.matrix import SYMBOLS
from conformance.reports.page_figures import comparisons, figures
from conformance.reports.page_tables import Entry, distinct, editions, entries, interned
from conformance.rows.results_file import ROOT, VERDICTS, Results

TEMPLATE, STYLE, PROGRAM = (f"page.{ending}" for ending in ("html.j2", "css", "js"))
MEANINGS: Mapping[str, str] = {
    "agrees": "Every case is as plain autograd, or the rule that the law states, says.",
    "refuses": "A RuntimeError, TypeError, ValueError or NotImplementedError that names the argument, the option or the "
    "operation that it is about, before any wrong gradient is visible.",
    "diverges": "Another value, count or lifetime, and no error.",
    "crashes": "Any other exception.",
    "hangs": "No answer in time.",
}


def rendered(found: Sequence[Results], directory: Path, text: str, now: Now | None = None) -> str:
    """The page of these results and of two lists in the ``text`` of pages in ``docs``.

    ``directory`` is where the page will be, and where figures and what it links to are. What is older than ``now`` is
    marked; without it, nothing is.
    Raises ValueError for results without verdicts and a text without these lists, ModuleNotFoundError without Jinja2.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # here: to judge, it is not needed
    from markupsafe import Markup

    here = Path(__file__).parent
    environment = Environment(
        loader=FileSystemLoader(here), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    shown = entries([now.of_results(one) for one in found] if now else found)
    linked = [*directory.glob("papers/README.md"), *sorted(directory.glob("compare-*.json"))]
    return environment.get_template(TEMPLATE).render(
        editions=editions(shown),
        verdict_count=len(shown),
        records=interned([entry.record() for entry in shown]),
        counts=Counter(entry.row["verdict"] for entry in shown),
        unexpected=sum(entry.unexpected for entry in shown),
        laws=distinct(entry.row["law"] for entry in shown),
        cases=sum(entry.row["cases"] for entry in shown),
        implementations=_described(shown),
        families=sorted({entry.family for entry in shown}),
        dates=sorted({run.header["date"][:10] for one in found for run in one.runs or (one,)}),
        files=distinct(one.path.name for one in found),
        figures=figures(directory / "compare"),
        comparisons=list(comparisons(directory, now)),
        older_count=sum(entry.older for entry in shown),
        older_cell=Markup(CELL),
        older_begin=Markup(BEGIN),
        older_end=Markup(END),
        older_mark=MARK,
        older_meaning=MEANING,
        random_state=torch.get_rng_state().nbytes,
        linked=[path.relative_to(directory).as_posix() for path in linked],
        rules=[docs_lists.spans(item) for item in docs_lists.items(text, docs_lists.RULES)],
        not_covered=[docs_lists.spans(item) for item in docs_lists.items(text, docs_lists.NOT_COVERED)],
        verdicts=VERDICTS,
        symbols=SYMBOLS,
        meanings=MEANINGS,
        style=Markup((here / STYLE).read_text(encoding="utf-8")),
        program=Markup((here / PROGRAM).read_text(encoding="utf-8")),
    )


def _described(shown: Iterable[Entry]) -> dict[str, str]:
    """Each implementation with its summary, if it is built in: what others ship may not be installed."""
    return {name: impls.get(name).summary if name in impls.names() else "" for name in distinct(e.row["impl"] for e in shown)}


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command line; 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m conformance.reports.page", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail when results/index.html is not the page of the results")
    options = parser.parse_args(arguments)
    path = root / "results" / "index.html"
    try:
        wanted = rendered(report.results(root), path.parent, docs_lists.text(root), None if options.check else Now())
    except (OSError, ValueError, ModuleNotFoundError) as error:
        sys.stderr.write(f"{path} is not made: {error}\n")
        return 1
    if not options.check:
        path.write_text(wanted, encoding="utf-8")
    elif not path.exists() or unmarked(path.read_text(encoding="utf-8")) != wanted:
        sys.stderr.write(f"{path} is stale: python -m conformance.reports.page\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
