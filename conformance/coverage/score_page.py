"""The mutation score by family of laws: how surely a run finds again the faults that are known."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.coverage.found_faults import cases_of
from conformance.judging.case_numbers import PATH, KnownFaults, read
from conformance.judging.law import PROFILES, Law, all_laws
from conformance.mutants.mutant import mutants
from conformance.reports.generated_section import Section

SECTION = Section("score", Path("docs/features.md"))
LEAST = 0.9  # a law whose rarest fault a run finds less surely than this is counted
RUNS = ("quick", "default")


def certainty(law: Law, found: KnownFaults, profile: str) -> float:
    """With which probability a run in this profile finds a law's rarest fault."""
    return found.certainty(cases_of(law, PROFILES[profile]))


def markdown(laws: Iterable[Law], found: Mapping[str, KnownFaults], of_mutants: Counter[str]) -> str:
    """The table: a line a family, and one for all. ``of_mutants`` has the number of mutants by law."""
    families: dict[str, list[Law]] = {}
    for law in laws:
        families.setdefault(law.family, []).append(law)
    every = [law for family in families.values() for law in family]
    heading = ["family", "laws", "mutants", "laws with a known fault", "rarest fault", "in programs"]
    heading += [text for run in RUNS for text in (f"found by {run}", f"laws below {LEAST:.0%}")]
    named = [(f"`{name}`", families[name]) for name in sorted(families)]
    lines = [_line(name, members, found, of_mutants) for name, members in [*named, ("all", every)]]
    return "\n".join(f"| {' | '.join(line)} |" for line in (heading, ["---"] * len(heading), *lines))


def _line(name: str, laws: list[Law], found: Mapping[str, KnownFaults], of_mutants: Counter[str]) -> list[str]:
    known = [law for law in laws if law.name in found]
    line = [name, str(len(laws)), str(sum(of_mutants[law.name] for law in laws)), str(len(known))]
    if not known:
        return [*line, *[""] * (2 + 2 * len(RUNS))]
    rarest = found[min(known, key=lambda law: found[law.name].share).name]
    line += [f"`{rarest.rarest}`", f"{rarest.share:.1%}"]
    for run in RUNS:
        each = [certainty(law, found[law.name], run) for law in known]
        line += [f"{min(each):.0%}", str(sum(one < LEAST for one in each))]
    return line


def measured() -> str:
    """The table of today's laws and mutants, with where and when the shares were measured."""
    header = json.loads(PATH.read_text(encoding="utf-8"))["header"]
    versions = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    about = (
        f"Shares of programs: measured on {header['date'][:10]} at {header['suite']['commit'][:8]}, seed {header['seed']}, "
        f"{header['machine']['processor']} with {header['machine']['cpus']} CPUs, {versions}. *Found by* is the least of a "
        "family's probabilities that a run finds the rarest fault of a law again, with as many cases as it has."
    )
    return f"{about}\n\n{markdown(all_laws().values(), read(), Counter(one.law for one in mutants()))}"


def write(root: Path) -> None:
    """Put the table into its page."""
    SECTION.write(root, measured())


def check(root: Path) -> list[str]:
    """What to say if the section is not that of today's laws, mutants and shares."""
    if SECTION.has(root, measured()):
        return []
    return [f"section {SECTION.name!r} of {root / SECTION.page} is stale: python -m reprise features --write"]
