"""Where results come from: the checkout that was measured, and the fingerprints of the code in it.

A row of a conformance run has three: of its implementation, of what that declares, and of its law. A table of a bench has
fingerprints for each contender, workload and so on, together with their roots, so that they can be computed again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import impls
from conformance.distributed import case_numbers
from conformance.distributed.law import PROFILES as RANKED_PROFILES
from conformance.distributed.law import all_laws as ranked_laws
from conformance.judging.case_numbers import number_of_cases
from conformance.judging.law import PROFILES, all_laws
from conformance.provenance.fingerprints import LAWS, RANKED_LAWS, Item, Sources
from conformance.rows import results_file
from conformance.rows.results_file import ROOT, Row

# The code that judges by every law. In a complete run the simulated device is registered, too, and torch calls its functions.
JUDGE = "conformance.judging.explorer:Explorer", "conformance.simulated_device.device:second"
APART = ("conformance.isolation.sandbox:Contained",)  # and for an implementation in a process of its own
RANKED_JUDGE = "conformance.distributed.explorer:RankedExplorer", "conformance.distributed.rank"  # of laws that take ranks
RANKED_LIMITS = "impls.distributed_limits:LIMITS"  # what is declared of them, by name
RANKS = "ranks"  # in a row, how many there were, where its law takes them
FEW = 5  # files that a message names, at most


@dataclass(frozen=True)
class Origin:
    """A checkout when a measurement begins: its commit, its files with uncommitted changes, its code."""

    commit: str
    changed: tuple[str, ...]
    sources: Sources
    root: Path

    @property
    def suite(self) -> dict[str, Any]:
        """Commit and whether files were changed since, as they are stored with results."""
        return {"commit": self.commit, "dirty": bool(self.changed)}

    def fault(self) -> str:
        """Why what was measured since then is not what its commit gives, so that it may not be published; "" if it is."""
        if self.commit == results_file.UNKNOWN:
            return f"the commit is unknown, for {self.root} is no git repository"
        if self.changed:
            return f"there are uncommitted changes: {_few(self.changed)}; commit them, or stash them"
        meanwhile = self.sources.differing(Sources(self.root))
        return f"files were changed while it was measured: {_few(meanwhile)}; measure it again" if meanwhile else ""

    def require(self) -> None:
        """Raise ValueError, before anything is measured, for a checkout from which nothing may be published."""
        if fault := self.fault():
            raise ValueError(f"nothing is published from here: {fault}")


def begin(root: Path = ROOT) -> Origin:
    """The checkout as it is now."""
    return Origin(results_file.commit(root), results_file.changed(root), Sources(root), root)


def _few(names: Sequence[str]) -> str:
    more = len(names) - FEW
    return ", ".join(names[:FEW]) + (f" and {more} more" if more > 0 else "")


def of_row(sources: Sources, row: Row, header: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprints of a row: of its law, and of its implementation and declaration if that is ours or a peer's.

    Raises ValueError if the code of either does not exist.
    """
    return {**of_implementation(sources, row, header), **of_law(sources, row, header)}


def of_implementation(sources: Sources, row: Row, header: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprints of a row's implementation, as ``of_row`` has them: of what it does, and of what it declares."""
    name = row["impl"]
    if name not in (*impls.names(), *impls.COMPILED, *impls.PEERS):
        return {}
    module = impls.module_of(name)
    compiled = sources.compiled(module) if name in impls.COMPILED else []
    done = sources.undeclared.fingerprint([module], [*packages([name], header["versions"]), *compiled])
    declaration = sources.declaration(module)
    if RANKS in row:
        known = [f"{RANKED_LIMITS}[{name}]"]
        declaration = sources.fingerprint([one for one in known if sources.has(one)], [declaration])
    return {"implementation": done, "declaration": declaration}


def of_law(sources: Sources, row: Row, header: Mapping[str, Any]) -> dict[str, str]:
    """The fingerprint of a row's law and of what judges by it, as ``of_row`` has it."""
    name = f"test_{row['law']}"
    if RANKS in row:
        law = f"{sources.holding(RANKED_LAWS, name)}:{name}"
        profile = f"conformance.distributed.law:PROFILES[{header['profile']}]"
        ranked = case_numbers.number_of_cases(ranked_laws()[row["law"]], RANKED_PROFILES[header["profile"]])
        return {"law": sources.undeclared.fingerprint([law, profile, *RANKED_JUDGE], [f"{ranked:.2f} cases"])}
    apart = () if row["impl"] in impls.names() else APART
    profile = f"conformance.judging.law:PROFILES[{header['profile']}]"
    roots = [f"{sources.holding(LAWS, name)}:{name}", profile, *JUDGE, *apart]
    cases = number_of_cases(all_laws()[row["law"]], PROFILES[header["profile"]])  # which measured shares of faults decide
    return {"law": sources.undeclared.fingerprint(roots, [f"{cases:.2f} cases"])}


def packages(names: Iterable[str], versions: Mapping[str, str]) -> list[str]:
    """The packages that peers among these come from, as requirements: ``["fairscale==0.4.13"]``."""
    needed = {impls.PEERS[name].distribution for name in names if name in impls.PEERS} - {""}
    return [f"{one}=={versions.get(one, results_file.UNKNOWN)}" for one in sorted(needed)]


def of_roots(
    sources: Sources, roots: Sequence[str], requirements: Sequence[str] = (), alone: Sequence[str] = ()
) -> dict[str, Any]:
    """The fingerprints of what a bench measures, one for implementations and one for the rest, with their roots.

    Definitions in ``alone`` count without what they refer to: they only choose what is measured.
    Raises ValueError for a root that does not exist.
    """
    sources = sources.undeclared
    items = sources.closure(roots) | sources.items(alone)
    ours = frozenset(filter(_is_implementation, items))
    found: dict[str, Any] = {"of": [*roots], "alone": [*alone], "packages": [*requirements]}
    if ours or requirements:
        found["implementation"] = sources.hashed(ours, requirements)
    return {**found, "workload": sources.hashed(items - ours)}


def _is_implementation(item: Item) -> bool:
    return item[0].partition(".")[0] == "impls"
