"""Makes a declaration, as a Python module, for an implementation that declares nothing, from the rows of a run.

The capabilities are those with which the fewest laws need an entry in ``known``. Two follow other rules: ``exact-sums`` is
dropped if a law agrees without it, and ``recomputes`` if most laws see nothing recomputed. Programs depend on the claimed
capabilities, those of some laws also on ``known``. Such laws are judged again by the proposed claims until these no longer
change, and so are those that are kept without a capability that they need. So the proposed declaration has itself been judged,
and the same run by it is as declared.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from conformance.judging.law import LAWS, Law
from conformance.judging.verdicts import NOTHING_RECOMPUTED
from conformance.reports.ranking import tier
from conformance.reproducers.script import SUBJECTS
from conformance.rows.results_file import is_untested
from impls import Implementation, Known
from impls.implementation import capabilities_of

Row = Mapping[str, Any]
Hold = Callable[[Law, Implementation], Row]
ROUNDS = 6


@dataclass(frozen=True)
class Declaration:
    """What an implementation can claim, and the rows by these claims. It is not ``settled`` if the claims kept changing."""

    claims: Implementation
    rows: tuple[Row, ...]
    settled: bool

    @property
    def untested(self) -> dict[str, str]:
        """Laws of which too few cases prove anything, with the reason; no declaration changes that."""
        return {row["law"]: row["detail"] for row in self.rows if is_untested(row)}


def declaration(rows: Iterable[Row], like: Implementation, hold: Hold, source: str) -> Declaration:
    """What can be declared for an implementation that was judged by these laws and the claims of ``like``.

    ``hold`` judges it by a law and the given claims; ``source`` says where the limits were seen.
    """
    found = {row["law"]: row for row in rows}
    there = capabilities_of(like.kind)
    claims = replace(like, capabilities=there - ({"exact-sums", "recomputes"} - like.capabilities), known={})
    claims = _without(claims, "exact-sums", found, hold, [law for law, row in found.items() if row["verdict"] == "diverges"])
    idle = [law for law, row in found.items() if is_untested(row) and NOTHING_RECOMPUTED in row["unproven"]]
    if 2 * len(idle) > sum(LAWS[law].recomputes and row["verdict"] == "agrees" for law, row in found.items()):
        claims = _without(claims, "recomputes", found, hold, idle)
    proposed = _proposed(claims, found, source)
    judged, settled = like, False
    for _ in range(ROUNDS):
        for law in found:
            if _depends(LAWS[law], judged, proposed) or _surprises(found[law], judged, proposed):
                found[law] = hold(LAWS[law], proposed)
        judged, proposed = proposed, _proposed(claims, found, source)
        if settled := _state(judged) == _state(proposed):
            break
    return Declaration(proposed, tuple(found.values()), settled)


def _depends(law: Law, before: Implementation, after: Implementation) -> bool:
    """Whether a law may have other programs with these claims than with those before."""
    return callable(law.programs) or law.may_nest(before) is not law.may_nest(after)


def _surprises(row: Row, before: Implementation, after: Implementation) -> bool:
    """Whether a law that was kept needs what is no longer claimed: some count a refusal as kept only where it is."""
    needs = LAWS[row["law"]].needs
    return row["verdict"] == "agrees" and needs <= before.capabilities and not needs <= after.capabilities


def _proposed(claims: Implementation, found: Mapping[str, Row], source: str) -> Implementation:
    fewest = replace(claims, capabilities=_fewest_limits(claims.capabilities, found))
    return replace(fewest, known=_limits(fewest, found, source))


def _state(claims: Implementation) -> Any:
    return claims.capabilities, {law: limit.verdict for law, limit in claims.known.items()}


def _without(claims: Implementation, capability: str, found: dict[str, Row], hold: Hold, laws: list[str]) -> Implementation:
    """The claims without a capability, if some of these laws agree without it; their rows are put into ``found``."""
    if capability not in claims.capabilities:
        return claims
    fewer = replace(claims, capabilities=claims.capabilities - {capability})
    again = {law: hold(LAWS[law], _guess(fewer, found[law])) for law in laws}
    if not any(row["verdict"] == "agrees" and not is_untested(row) for row in again.values()):
        return claims
    found.update({law: row for law, row in again.items() if row["verdict"] != found[law]["verdict"] or is_untested(found[law])})
    return fewer


def _guess(claims: Implementation, row: Row) -> Implementation:
    """The claims with the verdict that is likely to be found again declared, so that its program is not shrunk again."""
    return replace(claims, known={row["law"]: Known(row["verdict"], row["detail"], "seen before")})


def _fewest_limits(claimed: frozenset[str], found: Mapping[str, Row]) -> frozenset[str]:
    """The capabilities with which the fewest laws have another verdict than is claimed.

    Among equally good choices, one with the fewest capabilities that no law shows is taken, and then the largest. A capability
    that an everyday law refutes is left out: other laws may agree by chance, as with code that knows nothing of autocast.
    """
    tested = [(LAWS[law].needs, row["verdict"]) for law, row in found.items() if not is_untested(row)]
    untested = frozenset(name for law, row in found.items() if is_untested(row) for name in LAWS[law].needs)
    shown = frozenset(name for needs, verdict in tested if verdict == "agrees" for name in needs)
    claimed = claimed - ((_refuted(found) | untested - shown) - {"recomputes"})
    judged = [(needs, verdict) for needs, verdict in tested if needs]
    open_ones = {name for needs, verdict in judged if verdict != "agrees" for name in needs} & claimed - {"recomputes"}
    certain = claimed - open_ones
    # A law that needs only certain capabilities counts the same in every choice; so does one that neither agrees nor refuses.
    judged = [(needs - certain, verdict) for needs, verdict in judged if verdict in ("agrees", "refuses")]

    def costs(chosen: Set[str]) -> tuple[int, int, int]:
        entries = sum((needs <= chosen) is not (verdict == "agrees") for needs, verdict in judged)
        return entries, len(chosen - shown), -len(chosen)

    names = sorted(open_ones)
    subsets = (frozenset(some) for size in range(len(names) + 1) for some in itertools.combinations(names, size))
    return certain | min(subsets, key=costs)


def _refuted(found: Mapping[str, Row]) -> frozenset[str]:
    """The capabilities that are the only one needed by an everyday law that is not kept."""
    broken = [LAWS[law].needs for law, row in found.items() if row["verdict"] != "agrees" and tier(row) == "everyday"]
    return frozenset(name for needs in broken if len(needs) == 1 for name in needs)


def _limits(claims: Implementation, found: Mapping[str, Row], source: str) -> dict[str, Known]:
    limits = {}
    for law, row in found.items():
        needs = LAWS[law].needs
        if row["verdict"] != ("agrees" if needs <= claims.capabilities else "refuses"):
            missing = ", ".join(sorted(needs - claims.capabilities))
            reason = row["cause"] or f"agrees, though other laws that need {missing} do not"
            limits[law] = Known(row["verdict"], reason, source)
    return limits


def written(declared: Declaration, reference: str, about: str, part: str = "") -> str:
    """The declaration of what is at ``"pkg.mod:attr"`` as a Python module; ``about`` says how it was judged.

    ``part`` is the attribute to take if the reference is to an ``Implementation``: ``".subject"``.
    """
    claims = declared.claims
    module, _, attribute = f"{reference}{part}".partition(":")
    subject = SUBJECTS[claims.kind]
    lines = [f'"""{reference}, as it was judged: {about}."""', "", f"import {module}", "from impls import Implementation"]
    lines += ["from impls.implementation import known", ""] if claims.known else [""]
    if not declared.settled:
        lines += ["# Not settled: some laws draw programs from the claims, and whenever these changed so did the verdicts."]
    lines += [f"# Not tested, whatever is declared: law {law}, {why}" for law, why in declared.untested.items()]
    fields = [
        repr(re.sub(r"\W+", "-", reference)),
        f"kind={claims.kind!r}",
        f"{'checkpoint' if claims.kind == 'checkpoint' else 'provides'}={module}.{attribute}",
        f"binding={f'import {module}{chr(10) * 2}{subject} = {module}.{attribute}'!r}",
        f"source={reference!r}",
        f"capabilities=frozenset({sorted(claims.capabilities)!r})",
    ]
    lines += ["IMPLEMENTATION = Implementation(", *(f"    {field}," for field in fields)]
    lines += ["    known={", *_written_limits(claims.known), "    },"] if claims.known else []
    return "\n".join([*lines, ")"]) + "\n"


def _written_limits(known: Mapping[str, Known]) -> list[str]:
    """Entries, one for each verdict and reason."""
    grouped: dict[Known, list[str]] = {}
    for law, limit in sorted(known.items(), key=lambda item: (item[1].verdict, item[0])):
        grouped.setdefault(limit, []).append(law)
    lines = []
    for limit, laws in grouped.items():
        arguments = [limit.verdict, limit.reason, limit.source, *laws]
        lines += ["        **known(", *(f"            {argument!r}," for argument in arguments), "        ),"]
    return lines
