"""Measures in which share of a law's programs each fault shows that the law finds: mutants, and what implementations get wrong.

The numbers of cases in the profiles quick and default are made from it; see :mod:`conformance.judging.case_numbers`.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import impls
from conformance.coverage.drawn_features import CLAIMS
from conformance.judging.case_numbers import PATH, KnownFaults, number_of_cases, number_that_finds, read
from conformance.judging.explorer import TINY, Explorer
from conformance.judging.law import PROFILES, Law, Profile, all_laws
from conformance.judging.verdicts import Verdict
from conformance.mutants.mutant import Mutant, mutants
from conformance.reports import report
from conformance.rows import results_file
from conformance.rows.results_file import Row
from conformance.simulated_device.device import second
from impls.native import NativeUnavailableError
from impls.native.region import require_extension

# The most programs that the default profile may draw; nothing is shrunk, and a mutant is no declared limit to look for.
EVERY_CASE = Profile(PROFILES["default"].cases, 0, False, patience=0)
QUICK = PROFILES["quick"]  # by which mutants are judged
SEED = 0
FAULTS = ("diverges", "crashes", "hangs")  # a refusal is no fault, and tells little about how often one shows
REFERENCE = "plain"  # it checkpoints nothing, which nearly every program shows

Shares = dict[str, dict[str, float]]  # by law and fault


def of_rows(rows: Iterable[Row]) -> Shares:
    """The shares of the programs in which implementations get laws wrong."""
    found: Shares = {}
    for row in rows:
        wrong = sum(count for verdict, count in row["counts"].items() if verdict in FAULTS)
        if wrong and row["impl"] != REFERENCE and row["law"] in all_laws():
            shares = found.setdefault(row["law"], {})  # several releases of torch may have been judged
            shares[row["impl"]] = min(shares.get(row["impl"], 1.0), wrong / row["cases"])
    return found


def of_mutants(name: str) -> dict[str, float]:
    """The share of a law's programs in which each of its mutants shows, without those that end the process.

    The programs of the quick profile are other ones. Where they do not show a mutant that they should, its share is taken to be
    half as large, and so on. One that shows in no program, but does so in a run of quick, counts as half a program.
    """
    second("cpu")
    law, there = all_laws()[name], [one for one in mutants() if one.law == name and _is_measured(one)]
    explorer = Explorer("cpu", EVERY_CASE, SEED)
    least = 0.5 / len(explorer.programs(law, there[0].original)) if there else 0.0
    shares = {one.name: max(_share(explorer, law, one), least) for one in there}
    due = [one for one in there if one.profile == "quick"]
    while due:
        cases = number_that_finds(rarest({name: shares})[name], law, QUICK, len(law.strategies(due[0].original)))
        explorer = Explorer("cpu", replace(EVERY_CASE, cases=cases / law.effort), SEED)
        due = [one for one in due if not _share(explorer, law, one)]
        shares |= {one.name: shares[one.name] / 2 for one in due}
        if cases == QUICK.cases * law.effort:
            break
    return shares


def _is_measured(mutant: Mutant) -> bool:
    """Whether it can be judged here, and no longer profile than the default one is needed to show it."""
    if mutant.original.name == "native":
        try:
            require_extension()
        except NativeUnavailableError:
            return False
    return not mutant.ends_process and mutant.profile in ("quick", "default")


def _share(explorer: Explorer, law: Law, mutant: Mutant) -> float:
    claims = mutant.original
    judged = replace(mutant.implementation, capabilities=claims.capabilities, known={})
    explorer.expect_effect(law, claims)
    outcomes = explorer.outcomes(law, judged, claims)
    expected = Verdict(claims.expected(law.name, law.needs))
    return sum(one.verdict.severity > expected.severity or bool(one.beyond) for one in outcomes) / len(outcomes)


def measured(tell: Callable[[str], object]) -> Shares:
    """The shares of all faults that are known, those of the mutants measured now; ``tell`` is called with each law's name.

    The share of a rarest fault does not rise: threads and addresses decide about some.
    """
    shares = of_rows(row for results in report.results() for row in results.rows)
    laws = sorted({one.law for one in mutants() if not all_laws()[one.law].lacks("cpu")})
    workers = ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn"))
    with workers:
        for law, found in zip(laws, workers.map(of_mutants, laws), strict=True):
            tell(law)
            shares.setdefault(law, {}).update(found)
    for law, before in read().items():
        if before.rarest in shares.get(law, {}):
            shares[law][before.rarest] = min(before.share, shares[law][before.rarest])
    return shares


def rarest(shares: Mapping[str, Mapping[str, float]]) -> dict[str, KnownFaults]:
    """By law, how many faults it finds, and the one that shows in the smallest share of its programs."""
    found = {}
    for law, faults in sorted(shares.items()):
        if faults:
            name = min(faults, key=lambda one: (faults[one], one))
            found[law] = KnownFaults(len(faults), name, round(faults[name], 4))
    return found


def write(tell: Callable[[str], object], path: Path = PATH) -> None:
    """Measure all, and write what decides the numbers of cases, with where and when it was measured."""
    keep(measured(tell), path)


def keep(shares: Shares, path: Path) -> None:
    """Write the rarest faults of laws, with where and when they were measured."""
    suite = {"commit": results_file.commit(), "dirty": bool(results_file.changed())}
    header: dict[str, Any] = results_file.header(SEED, "default", "cpu", suite)
    laws = {law: asdict(found) for law, found in rarest(shares).items()}
    lines = ",\n".join(f"{json.dumps(law)}: {json.dumps(found)}" for law, found in laws.items())
    path.write_text(f'{{"header": {json.dumps(header)},\n"laws": {{\n{lines}\n}}}}\n', encoding="utf-8")


def table() -> list[str]:
    """A line for each law: how many cases quick and default have, and the rarest fault that it has found."""
    return lines_of(all_laws(), PROFILES, number_of_cases, read())


def cases_of(law: Law, profile: Profile, numbers: Callable[[Law, Profile, int], float] = number_of_cases) -> int:
    """How many cases a law has in a profile, for an implementation that claims all: as many of each of its strategies."""
    strategies = len(law.strategies(impls.get(CLAIMS[law.kind])))
    return strategies * max(1, math.ceil(numbers(law, profile, strategies) / strategies - TINY))


def lines_of(
    laws: Mapping[str, Law],
    profiles: Mapping[str, Profile],
    numbers: Callable[[Law, Profile, int], float],
    found: Mapping[str, KnownFaults],
) -> list[str]:
    """The table of these laws, with what decides their numbers of cases."""
    width = max(map(len, laws))
    lines = [f"{'law':<{width}}  quick  default  rarest fault"]
    for name, law in sorted(laws.items()):
        quick, default = (cases_of(law, profiles[profile], numbers) for profile in ("quick", "default"))
        one = found.get(name)
        told = "none found yet"
        if one:
            shown = " and ".join(f"{one.certainty(cases):.0%}" for cases in (quick, default))
            told = f"{one.rarest}, in {one.share:.1%} of the programs, so found with {shown}; of {one.faults}"
        lines.append(f"{name:<{width}}  {quick:>5}  {default:>7}  {told}")
    return lines
