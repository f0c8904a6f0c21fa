"""How many programs a law that takes ranks has: as many as find its known faults again, and never fewer than a few."""

from __future__ import annotations

from typing import Any

import pytest

import impls
from conformance.coverage import ranked_faults
from conformance.distributed import case_numbers, mutants
from conformance.distributed.case_numbers import number_of_cases, number_that_finds
from conformance.distributed.explorer import RankedExplorer
from conformance.distributed.law import PROFILES, all_laws
from conformance.distributed.world import Worlds
from conformance.judging.case_numbers import KnownFaults, read
from conformance.judging.judge import Outcome
from conformance.judging.law import Profile
from conformance.judging.verdicts import Verdict
from conformance.provenance import measured_code
from impls.distributed_limits import LIMITS

LAW = all_laws()["ddp_with_shared_weights"]
CERTAIN = Profile(10, 0, False, certainty=0.99, least=3)


@pytest.mark.parametrize(("share", "strategies", "number"), [(1.0, 1, 3), (1.0, 2, 4), (0.5, 1, 7), (0.1, 1, 10)])
def test_there_are_enough_programs_to_find_the_rarest_fault_again(share: float, strategies: int, number: int) -> None:
    assert round(number_that_finds(KnownFaults(1, "fault", share), LAW, CERTAIN, strategies)) == number


def test_a_law_that_has_found_nothing_gets_all_programs() -> None:
    assert number_that_finds(None, LAW, CERTAIN) == 10


def test_every_law_is_measured_and_its_quick_number_is_no_larger() -> None:
    laws = all_laws()
    assert read(case_numbers.PATH).keys() == laws.keys()
    for law in laws.values():
        assert 2 * law.effort <= number_of_cases(law, PROFILES["quick"]) <= number_of_cases(law, PROFILES["default"])


def test_other_profiles_do_not_ask_for_known_faults() -> None:
    soak = PROFILES["soak"]
    assert all(number_of_cases(law, soak) == soak.cases * law.effort for law in all_laws().values())


@pytest.mark.parametrize(("share", "number"), [(1.0, 3), (0.5, 7), (0.01, 10)])
def test_so_many_programs_are_drawn(share: float, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {LAW.name: KnownFaults(1, "fault", share)}
    monkeypatch.setattr(case_numbers, "_read", lambda _: found)
    drawn = RankedExplorer(Worlds(2), PROFILES["default"], 0)
    assert drawn.number(LAW, impls.get("nested")) == number
    assert 0 < len(drawn.programs(LAW, impls.get("nested"))) <= number


def test_a_row_is_older_once_its_law_has_another_number_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"law": LAW.name, "impl": "nested", "ranks": 2}
    sources, header = measured_code.begin().sources, {"profile": "default"}
    before = measured_code.of_law(sources, row, header)
    assert measured_code.of_law(sources, row, header) == before
    monkeypatch.setattr(case_numbers, "_read", lambda _: {LAW.name: KnownFaults(1, "fault", 0.7)})
    assert measured_code.of_law(sources, row, header) != before


class Judge(RankedExplorer):
    """Mutants diverge on every program but those of the default profile where these are few; limits show in every other one."""

    enough = 0

    def judge(self, law: Any, program: Any, implementation: Any) -> Outcome:
        programs = self.programs(law, impls.get("nested"))
        if implementation.name in impls.names():
            return Outcome(program, Verdict.DIVERGES if programs.index(program) % 2 else Verdict.AGREES)
        return Outcome(program, Verdict.DIVERGES if len(programs) > self.enough else Verdict.AGREES)


def shares(monkeypatch: pytest.MonkeyPatch, enough: int) -> dict[str, float]:
    monkeypatch.setattr(ranked_faults, "RankedExplorer", Judge)
    monkeypatch.setattr(Judge, "enough", enough)
    return ranked_faults.of_law(all_laws()["ddp_trains_as_with_plain_regions"], Worlds(2))


@pytest.mark.parametrize(("enough", "share"), [(0, 1.0), (4, 0.5)])
def test_a_mutant_that_the_default_profile_does_not_show_counts_as_rarer(
    enough: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = shares(monkeypatch, enough).values()
    assert found == share


def test_mutants_and_declared_limits_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranked_faults, "share", lambda explorer, law, judged, claims, due: 1.0)
    for name, law in all_laws().items():
        limits = {one for one in impls.names("checkpoint") if one != "plain" and name in LIMITS[one]}
        mutant = ranked_faults.mutant_of(name)
        assert ranked_faults.of_law(law, Worlds(2)).keys() == limits | ({mutant.implementation.name} if mutant else set())
        assert bool(mutant) == (name not in mutants.BROKEN_BY_NESTED)


def test_programs_depend_on_no_other_claims_than_they_may() -> None:
    """What is drawn for an implementation is what its own claims give, so that it can be drawn once for several."""
    for law in (law for law in all_laws().values() if callable(law.programs)):
        for one in map(impls.get, ("nested", "legacy", "torch-reentrant")):
            drawn = RankedExplorer(Worlds(2), PROFILES["quick"], 0)
            found = list[Any]()
            drawn.draw(law, one, found.append)
            assert [program.source for program in drawn.programs(law, one)] == [*dict.fromkeys(each.source for each in found)]


def test_programs_are_drawn_once_for_implementations_with_the_same_claims() -> None:
    drawn = RankedExplorer(Worlds(2), PROFILES["quick"], 0)
    assert drawn.programs(LAW, impls.get("nested")) is drawn.programs(LAW, impls.get("torch-nonreentrant"))
    assert drawn.programs(LAW, impls.get("nested")) is not drawn.programs(LAW, impls.get("legacy"))
