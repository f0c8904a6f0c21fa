"""Measures in which share of the programs of a law that takes ranks each fault shows: its mutant, and declared limits.

The numbers of its cases are made from it; see :mod:`conformance.distributed.case_numbers`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import impls
from conformance.coverage import found_faults
from conformance.coverage.found_faults import REFERENCE, SEED, Shares, rarest
from conformance.distributed import mutants
from conformance.distributed.case_numbers import PATH, number_of_cases, number_that_finds
from conformance.distributed.explorer import RankedExplorer
from conformance.distributed.law import PROFILES, RankedLaw, all_laws
from conformance.distributed.world import Worlds
from conformance.judging.case_numbers import read
from conformance.judging.law import Profile
from conformance.judging.verdicts import Verdict
from conformance.mutants.mutant import Mutant
from impls import Implementation
from impls.distributed_limits import declared

DEFAULT = PROFILES["default"]
# More programs than a run has, so that the shares are of more than a few; nothing is shrunk, and no limit is looked for.
MANY = Profile(1.6 * DEFAULT.cases, 0, False, patience=0)


def mutant_of(law: str) -> Mutant | None:
    """The mutant that a law must catch; None if no fault can break it."""
    found: Mutant | None = getattr(mutants, mutants.catches(law), None)
    return found


def share(explorer: RankedExplorer, law: RankedLaw, judged: Implementation, claims: Implementation, due: Verdict) -> float:
    """In which share of a law's programs an implementation has this verdict, or a worse one."""
    outcomes = explorer.outcomes(law, replace(judged, capabilities=claims.capabilities, known={}), claims)
    return sum(one.verdict.severity >= due.severity for one in outcomes) / len(outcomes)


def of_law(law: RankedLaw, worlds: Worlds) -> dict[str, float]:
    """The shares of a law's programs in which its mutant shows, and limits that built-in implementations are declared to have.

    Where the programs of the default profile, which may be other ones, do not show the mutant, its share is taken to be half
    as large, and so on.
    """
    explorer = RankedExplorer(worlds, MANY, SEED)
    found = {one.name: share(explorer, law, one, one, verdict) for one, verdict in _limits(law)}
    if (mutant := mutant_of(law.name)) is None:
        return found
    name, its, verdict = mutant.implementation.name, mutants.catches(law.name), mutants.verdict(law.name)
    found_as = {name: f"{mutants.__name__}:{its}.implementation"}
    explorer.found_as = found_as
    strategies = len(law.strategies(mutant.original))
    of_mutant = share(explorer, law, mutant.implementation, mutant.original, verdict)
    of_mutant = of_mutant or 0.5 / len(explorer.programs(law, mutant.original))
    while True:
        cases = number_that_finds(rarest({law.name: {**found, name: of_mutant}})[law.name], law, DEFAULT, strategies)
        few = RankedExplorer(worlds, replace(DEFAULT, cases=cases / law.effort, certainty=1), SEED, found_as)
        if cases == DEFAULT.cases * law.effort or share(few, law, mutant.implementation, mutant.original, verdict):
            return {**found, name: of_mutant}
        of_mutant /= 2


def _limits(law: RankedLaw) -> list[tuple[Implementation, Verdict]]:
    """The built-in implementations that are declared not to keep a law, each with its declared verdict."""
    there = [one for one in map(impls.get, impls.names("checkpoint")) if one.name != REFERENCE]
    return [(one, Verdict(known[law.name].verdict)) for one in there if law.name in (known := declared(one))]


def measured(ranks: int, tell: Callable[[str], object]) -> Shares:
    """The shares of all faults that are known, measured now; ``tell`` is called with each law's name.

    The share of a rarest fault does not rise, for the programs of another measurement may be other ones.
    """
    shares: Shares = {}
    with Worlds(ranks) as worlds:
        for name, law in all_laws().items():
            shares[name] = of_law(law, worlds)
            tell(name)
    for name, before in read(PATH).items():
        if before.rarest in shares.get(name, {}):
            shares[name][before.rarest] = min(before.share, shares[name][before.rarest])
    return shares


def write(ranks: int, tell: Callable[[str], object], path: Path = PATH) -> None:
    """Measure all, and write what decides the numbers of cases."""
    found_faults.keep(measured(ranks, tell), path)


def table() -> list[str]:
    """A line for each law: how many cases quick and default have, and the rarest fault that it has found."""
    return found_faults.lines_of(all_laws(), PROFILES, number_of_cases, read(PATH))
