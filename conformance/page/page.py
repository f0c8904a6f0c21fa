"""The page of results: one HTML file with every verdict, what was seen, and the script that shows it.

``results/index.html`` is made from the published results alone, and says when and on what they were measured; it loads nothing
from a network. Marks at what is older than the code depend on the code, too, and a check ignores them.
"""

from __future__ import annotations

import ast
import base64
import gzip
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import impls
from conformance.page import docs_lists
from conformance.page.figures import comparisons, figures
from conformance.page.models import models
from conformance.provenance.staleness import BEGIN, CELL, END, MARK, MEANING, Now, unmarked
from conformance.reports import report
from conformance.reports.answers import answers, keeps
from conformance.reports.editions import Entry, distinct, editions, entries, interned
from conformance.reports.matrix import SYMBOLS
from conformance.rows.for_readers import CONSEQUENCES, TIERS
from conformance.rows.results_file import ROOT, VERDICTS, Results

TEMPLATE, STYLE, PROGRAM = (f"page.{ending}" for ending in ("html.j2", "css", "js"))
_RECORDS = re.compile(r'(?<=id="records">)[A-Za-z0-9+/=]+')
MEANINGS: Mapping[str, str] = {
    "agrees": "Every case does what plain autograd does, or what the law states.",
    "refuses": "A RuntimeError, TypeError, ValueError or NotImplementedError that names the argument, the option or the "
    "operation that it is about, before any wrong gradient is visible.",
    "diverges": "Another value, count or lifetime, and no error.",
    "crashes": "Any other exception.",
    "hangs": "No answer in time.",
}


def rendered(found: Sequence[Results], directory: Path, text: str, now: Now | None = None) -> str:
    """The page for these results, with two lists from the ``text`` of pages in ``docs``.

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
    shown = entries([now.of_results(one) for one in found] if now else found)
    linked = [*directory.glob("papers/README.md"), *sorted(directory.glob("compare-*.json"))]
    return environment.get_template(TEMPLATE).render(
        editions=editions(shown),
        verdict_count=len(shown),
        records=_packed(interned([entry.record() for entry in shown])),
        counts=Counter(entry.row["verdict"] for entry in shown),
        unexpected=sum(entry.unexpected for entry in shown),
        laws=distinct(entry.row["law"] for entry in shown),
        cases=sum(entry.row["cases"] for entry in shown),
        implementations=_described(shown),
        answers=answers(editions(shown)[0]),
        keeps=keeps,
        tiers=TIERS,
        consequences=CONSEQUENCES,
        families=sorted({entry.family for entry in shown}),
        dates=sorted({run.header["date"][:10] for one in found for run in one.runs or (one,)}),
        files=distinct(one.path.name for one in found),
        figures=figures(directory / "compare"),
        comparisons=list(comparisons(directory, now)),
        models=models(directory, now),
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


def _packed(columns: Any) -> str:
    """The records as JSON that is compressed, for they are a third of the page, and as text."""
    text = json.dumps(columns, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _unpacked(page: str) -> str:
    """A page with its records as JSON: how they are compressed depends on the release of zlib."""
    return _RECORDS.sub(lambda found: gzip.decompress(base64.b64decode(found[0])).decode(), page)


def _described(shown: Iterable[Entry]) -> dict[str, str]:
    """Each implementation with its summary, if it is built in or a peer."""
    return {name: _summary(name) for name in distinct(e.row["impl"] for e in shown)}


def _summary(name: str) -> str:
    """The summary of an implementation; that of a peer is read from the text of its module, as it may not be installed."""
    if name in impls.names():
        return impls.get(name).summary
    if name not in impls.PEERS and name not in impls.COMPILED:
        return ""
    path = ROOT.joinpath(*impls.module_of(name).split(".")).with_suffix(".py")
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    found = [one.value for one in nodes if isinstance(one, ast.keyword) and one.arg == "summary"]
    return next((str(one.value) for one in found if isinstance(one, ast.Constant)), "")


def write(root: Path = ROOT) -> None:
    """Write ``results/index.html``. Raises ValueError, which names the file, if it cannot be made."""
    _path(root).write_text(_wanted(root, Now()), encoding="utf-8")


def check(root: Path = ROOT) -> str:
    """What is wrong with ``results/index.html``, apart from marks; "" if nothing. Raises as ``write`` does."""
    path, wanted = _path(root), _wanted(root, None)
    fresh = path.exists() and unmarked(_unpacked(path.read_text(encoding="utf-8"))) == _unpacked(wanted)
    return "" if fresh else f"{path} is stale: python -m reprise page"


def _path(root: Path) -> Path:
    return root / "results" / "index.html"


def _wanted(root: Path, now: Now | None) -> str:
    try:
        return rendered((*report.results(root), *report.ranked(root)), root / "results", docs_lists.text(root), now)
    except (OSError, ValueError, ModuleNotFoundError) as error:
        raise ValueError(f"{_path(root)} is not made: {error}") from error
