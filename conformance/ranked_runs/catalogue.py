"""The laws that take ranks, and who is declared not to keep which, as a generated section of ``docs``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from conformance.distributed import mutants
from conformance.distributed.law import RankedLaw, all_laws
from conformance.reports.generated_section import Section
from conformance.rows import for_readers
from impls import Known
from impls.distributed_limits import LIMITS as DECLARED

SECTION = Section("distributed-laws", Path("docs/distributed-laws.md"))
LAWS = ("law", "what it states", "ranks", "tier", "if broken", "mutant")
LIMITS = ("implementations", "laws", "verdict", "why", "source")
NESTED = "nested itself, which is declared not to keep it; `recomputes-nothing` does"  # where a law catches no mutant
DEFAULT = 2  # ranks of a law that does not ask for more


def markdown() -> str:
    """Both tables."""
    laws = sorted(all_laws().values(), key=lambda law: law.name)
    limits = list(_limits(DECLARED))
    parts = [f"{len(laws)} laws.", _table(LAWS, map(_law, laws)), "## Declared limits", _table(LIMITS, limits)]
    return "\n\n".join(parts)


def check(root: Path) -> list[str]:
    """What to say where the section is not what it has to be."""
    if SECTION.has(root, markdown()):
        return []
    return [f"section {SECTION.name!r} of {root / SECTION.page} is stale: python -m reprise report --write"]


def write(root: Path) -> None:
    """Put the tables into their page."""
    SECTION.write(root, markdown())


def _law(law: RankedLaw) -> list[str]:
    found, caught = for_readers.of_law(law.name), mutants.catches(law.name)
    tier, broken = ("", "") if found is None else (found.tier, found.consequence)
    mutant = caught.replace("_", "-") or NESTED
    return [f"`{law.name}`", law.statement, str(max(DEFAULT, law.ranks)), tier, broken, mutant]


def _limits(limits: Mapping[str, Mapping[str, Known]]) -> Iterable[list[str]]:
    """Limits by their reason: who has it, and under which laws."""
    found: dict[Known, tuple[dict[str, None], dict[str, None]]] = {}
    for name, its in limits.items():
        for law, limit in its.items():
            names, laws = found.setdefault(limit, ({}, {}))
            names[name], laws[law] = None, None
    for limit, (names, laws) in found.items():
        yield [", ".join(names), ", ".join(f"`{law}`" for law in laws), limit.verdict, limit.reason, limit.source]


def _table(heading: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heading = [*heading]
    lines = [heading, ["---"] * len(heading), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
