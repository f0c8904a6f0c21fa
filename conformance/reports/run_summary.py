"""A few lines at the end of a run that is not as declared: how many laws, of which families, and where to look first."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import re
from collections import Counter
from collections.abc import Sequence

import impls
from conformance import laws
from conformance.judging.causes import GRADIENT
from conformance.judging.law import LAWS
from conformance.judging.result import is_worse
from conformance.rows.results_file import Row, claim, is_unexpected, is_untested


def summary(rows: Sequence[Row], warnings: Sequence[str] = ()) -> str:
    """What is worse than declared, by implementation and family, wrong gradients first; "" where all is as declared.

    ``warnings`` are those of smoke checks. Each is said again: laws that fail may fail for nothing else.
    """
    lines = [line for name in dict.fromkeys(row["impl"] for row in rows) for line in _of(name, rows)]
    return "\n".join([*lines, *(f"before the first law: {warning}" for warning in warnings if lines)])


def nothing_selected(expression: str) -> str:
    """Which laws and implementations have names like those in an expression of ``-k`` that selects nothing; "" without one."""
    for module in pkgutil.iter_modules(laws.__path__):
        importlib.import_module(f"{laws.__name__}.{module.name}")
    names = [*LAWS, *impls.names(), *impls.PEERS]
    asked = [word for word in re.findall(r"[\w.-]+", expression) if word not in ("and", "or", "not")]
    near = [name for word in asked for name in difflib.get_close_matches(word, names, 3, cutoff=0.4)]
    told = f"; nearest of {len(names)} names: {', '.join(dict.fromkeys(near))}" if near else ""
    return f"-k {expression!r} selects no law of these implementations{told}" if asked else ""


def _of(name: str, rows: Sequence[Row]) -> list[str]:
    unexpected = [row for row in rows if row["impl"] == name and is_unexpected(row)]
    worse = sorted(filter(is_worse, unexpected), key=_urgency)
    untested = [row for row in unexpected if is_untested(row)]
    lines = []
    if worse:
        families = Counter(row["family"] for row in worse)
        by_family = sorted(families, key=lambda family: (family != "gradients", -families[family]))
        told = ", ".join(f"{family}: {_laws(families[family])}" for family in by_family)
        causes = Counter(row["cause"] for row in worse)
        first = GRADIENT if GRADIENT in causes else causes.most_common(1)[0][0]
        told_of = f"; the reason of {causes[first]} is: {first}" if first else ""
        lines.append(f"{name}: {_laws(len(worse))} worse than {claim(worse[0])}{told_of}")
        lines += [f"  {told}", f"  look first at {worse[0]['law']}: {worse[0]['verdict']}, {worse[0]['cause']}"]
    if untested:
        why = Counter(reason for row in untested for reason in row["unproven"]).most_common(1)
        told = f"; of most: {why[0][0]}" if why else ""
        lines.append(f"{name}: {_laws(len(untested))} not tested (✓ and *), since too few cases prove anything{told}")
    if gone := len(unexpected) - len(worse) - len(untested):
        lines.append(f"{name}: {_laws(gone)} with a milder verdict than is due by a declared limit or a missing capability")
    return lines


def _urgency(row: Row) -> tuple[bool, bool, int]:
    """Wrong gradients, then other faults with a program, and of these the smallest program first."""
    return row["cause"] != GRADIENT, not row["program"], len(row["program"])


def _laws(count: int) -> str:
    return f"{count} {'law' if count == 1 else 'laws'}"
