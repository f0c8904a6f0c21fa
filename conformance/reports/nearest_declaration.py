"""Which implementation's declaration best fits one that declares nothing, computed from the run that judged it.

It says where to look first and excuses nothing: verdicts and status stay as the run has found them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import impls
from conformance.judging.law import LAWS
from conformance.judging.result import is_worse
from conformance.judging.verdicts import Verdict
from conformance.reports import ranking
from conformance.rows.results_file import Row
from impls import Implementation

CONTROL = "plain"  # does no checkpointing, so nothing is like it
LEAST = 20
CLEARLY = 0.5  # how many laws may not fit the nearest declaration, as a share of those that do not fit the claims of the run
AS_NEAR = 0.05  # share of the laws by which a peer must fit better than ours, whose limits are explained in their code


@dataclass(frozen=True)
class Nearest:
    """The implementation whose declaration fits best, and the failures ``beyond`` and ``within`` its limits.

    ``closer`` is an implementation that others ship and that fits better, but by so ``few`` laws that it is not named.
    """

    name: str
    beyond: tuple[Row, ...]
    within: tuple[Row, ...]
    closer: str = ""
    few: int = 0


def nearest(rows: Sequence[Row], like: str) -> Nearest | None:
    """The implementation whose declaration best fits rows that were judged by the claims of ``like``; None if that is ``like``.

    One that others ship is named only if it fits clearly better than all of ours.

    Also None if none fits clearly better than ``like``: what lies within the limits of an implementation of another kind, which
    fits by chance, may be a fault. And None if the rows are of something that declares its limits, if nothing failed, and for
    fewer than ``LEAST`` laws.
    """
    worse = [row for row in rows if is_worse(row) and row["law"] in LAWS]
    if not worse or len(rows) < LEAST or any(row.get("declared", True) for row in rows):
        return None
    names = [name for name in impls.names(rows[0].get("subject", "checkpoint")) if name != CONTROL]
    names = [like, *(name for name in names if name != like)]  # the first of those that fit as well
    candidates = [impls.get(name) for name in names]
    misfits = {one.name: sum(_found(row, one) is not _expected(row, one) for row in rows) for one in candidates}
    best = min(candidates, key=lambda one: misfits[one.name] + (0 if _is_ours(one) else len(rows) * AS_NEAR))
    if best.name == like or misfits[best.name] > CLEARLY * misfits[like]:
        return None
    beyond = [row for row in worse if _found(row, best).rank > _expected(row, best).rank]
    there = {id(row) for row in beyond}
    within = tuple(row for row in worse if id(row) not in there)
    closest = min(candidates, key=lambda one: misfits[one.name])
    few = misfits[best.name] - misfits[closest.name]
    return Nearest(best.name, tuple(beyond), within, closest.name if few else "", few)


def _is_ours(one: Implementation) -> bool:
    return not impls.module_of(one.name).startswith("impls.peers")


def _expected(row: Row, by: Implementation) -> Verdict:
    law = LAWS.get(row["law"])
    return Verdict(by.expected(law.name, law.needs)) if law else Verdict(row["verdict"])


def _found(row: Row, by: Implementation) -> Verdict:
    """The verdict by these claims: a difference by rounding alone agrees if plain's order of sums is not claimed."""
    rounds = bool(row.get(ranking.ROUNDED)) and "exact-sums" not in by.capabilities
    return Verdict.AGREES if rounds else Verdict(row["verdict"])
