"""The mutation score: how many faulty implementations the laws catch, and which laws have a mutant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from conformance.judging.law import Law


@dataclass(frozen=True)
class Attempt:
    """What a law found of one mutant: whether it caught it, with which verdict, by a program of how many operations."""

    family: str
    law: str
    mutant: str
    killed: bool
    verdict: str
    operations: int


def score(attempts: Iterable[Attempt], laws: Mapping[str, Law], unbreakable: Collection[str]) -> list[str]:
    """The lines of the score: one a family, one for all, and the names of what survived and of laws without a mutant."""
    found = list(attempts)
    families = {law.family: None for law in laws.values()}
    lines = [_line("mutation score", "killed", "laws with a mutant", "operations at most", "verdicts")]
    lines += [
        _row(family, [a for a in found if a.family == family], [name for name, law in laws.items() if law.family == family])
        for family in sorted(families)
    ]
    lines.append(_row("all", found, laws))
    survivors = [f"{attempt.mutant} ({attempt.law})" for attempt in found if not attempt.killed]
    without = sorted(laws.keys() - {attempt.law for attempt in found} - set(unbreakable))
    lines += [f"survived: {', '.join(survivors)}"] if survivors else []
    lines += [f"laws without a mutant here: {len(without)}: {', '.join(without[:10])}"] if without else []
    lines += [f"laws that nothing of ours can break: {', '.join(sorted(unbreakable))}"] if unbreakable else []
    return lines


def _row(name: str, attempts: Collection[Attempt], laws: Collection[str]) -> str:
    killed = sum(attempt.killed for attempt in attempts)
    most = max((attempt.operations for attempt in attempts), default=0)
    covered = len({attempt.law for attempt in attempts} & set(laws))
    verdicts = Counter(attempt.verdict for attempt in attempts)
    told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()))
    return _line(name, f"{killed} of {len(attempts)}", f"{covered} of {len(laws)}", str(most), told)


def _line(name: str, killed: str, laws: str, operations: str, verdicts: str) -> str:
    return f"{name:<16}{killed:>12}{laws:>20}{operations:>20}   {verdicts}".rstrip()
