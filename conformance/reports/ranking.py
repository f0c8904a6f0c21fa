"""What verdicts mean to readers: how bad each is, how ordinary its law is, and in which order they are listed.

A row's effect is what was found. It may differ from the law's consequence, which is what breaking the law usually does: where
an implementation refuses, there is no wrong gradient.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence

from conformance.judging.law import all_laws
from conformance.rows import for_readers
from conformance.rows.for_readers import CONSEQUENCES, TIERS, ForReaders
from conformance.rows.results_file import Row, is_untested

CRASH, HANG, REFUSED, ROUNDING, UNTESTED = "crash", "no end in time", "refused", "other last bits only", "not tested"
UNKNOWN = "of unknown consequence", "unknown"  # effect and tier of a law that is not there, as in results of an older suite
# Worst first. A crash or a refusal is loud; a wrong gradient or state is not.
EFFECTS = ("wrong gradient", "wrong state", CRASH, HANG, *[*CONSEQUENCES][2:], UNKNOWN[0], REFUSED, ROUNDING, UNTESTED)
ROUNDED = "rounding"  # in a row: all cases agree if sums may be taken in another order


@functools.cache
def guide(law: str) -> ForReaders | None:
    """What a law means to readers; None for one that is not there."""
    all_laws()
    if for_readers.of_law(law) is None:
        from conformance.distributed.law import all_laws as all_ranked_laws  # most runs need none of them

        all_ranked_laws()
    return for_readers.of_law(law)


def tier(row: Row) -> str:
    """The tier of a row's law."""
    found = guide(row["law"])
    return found.tier if found else UNKNOWN[1]


def effect(row: Row) -> str:
    """What a row's verdict does to a user, one of ``EFFECTS``; "" if the law is kept."""
    if row["verdict"] != "diverges":
        found = {"refuses": REFUSED, "crashes": CRASH, "hangs": HANG, "agrees": UNTESTED if is_untested(row) else ""}
        return found[row["verdict"]]
    if row.get(ROUNDED):
        return ROUNDING
    usual = guide(row["law"])
    return row.get("effect") or (usual.consequence if usual else UNKNOWN[0])


def urgency(row: Row) -> tuple[int, int, bool, int]:
    """The key by which rows are sorted: worst effect first, then most ordinary law, then smallest program."""
    place = [*TIERS, UNKNOWN[1]].index(tier(row))
    return [*EFFECTS, ""].index(effect(row)), place, not row["program"], len(row["program"])


def kept(rows: Sequence[Row]) -> str:
    """How many laws these rows keep, by tier: ``everyday: 61 of 61 kept, advanced: 98 of 107``."""
    parts: list[str] = []
    for name in (*TIERS, UNKNOWN[1]):
        if mine := [row for row in rows if tier(row) == name]:
            parts.append(f"{name}: {sum(not effect(row) for row in mine)} of {len(mine)}{'' if parts else ' kept'}")
    return ", ".join(parts)


def effects(rows: Iterable[Row]) -> dict[str, Counter[str]]:
    """How many rows have each effect, worst first, by tier."""
    found: dict[str, Counter[str]] = {}
    for row in sorted(rows, key=urgency):
        if name := effect(row):
            found.setdefault(name, Counter())[tier(row)] += 1
    return found


def by_tier(counts: Counter[str]) -> str:
    """Counts by tier in words: ``2 everyday, 5 advanced``."""
    return ", ".join(f"{counts[name]} {name}" for name in (*TIERS, UNKNOWN[1]) if counts[name])


def lines(rows: Sequence[Row]) -> list[str]:
    """A line about each implementation: what it keeps, by tier, and its wrong gradients."""
    found = []
    for name in dict.fromkeys(row["impl"] for row in rows):
        mine = [row for row in rows if row["impl"] == name]
        wrong = effects(mine).get("wrong gradient")
        found.append(f"{name}: {kept(mine)}" + (f"; wrong gradient: {by_tier(wrong)}" if wrong else ""))
    return found
