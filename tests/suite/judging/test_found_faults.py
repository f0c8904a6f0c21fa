"""In which share of a law's programs its faults show, as far as numbers of cases depend on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance.coverage import found_faults, score_page
from conformance.coverage.found_faults import EVERY_CASE, of_mutants, of_rows, rarest
from conformance.judging.case_numbers import KnownFaults
from conformance.judging.explorer import Explorer
from conformance.judging.law import all_laws
from conformance.mutants.mutant import Mutant, mutants
from impls import get

LAW = "dropout_masks_are_replayed"


def row(impl: str, cases: int, **counts: int) -> dict[str, Any]:
    return {"law": LAW, "impl": impl, "cases": cases, "counts": counts}


def test_shares_of_rows_leave_out_refusals_and_the_reference() -> None:
    rows = [row("plain", 4, diverges=4), row("legacy", 4, refuses=4), row("fairscale", 8, crashes=1, diverges=1, agrees=6)]
    assert of_rows(rows) == {LAW: {"fairscale": 0.25}}


def test_of_several_results_the_smallest_share_counts() -> None:
    one, other = row("legacy", 10, diverges=1), row("legacy", 10, diverges=5)
    assert of_rows([one, other]) == of_rows([other, one]) == {LAW: {"legacy": 0.1}}


def test_the_rarest_fault_decides_and_the_first_by_name_of_equal_ones() -> None:
    assert rarest({LAW: {"c": 0.5, "b": 0.2, "a": 0.2}, "other": {}}) == {LAW: KnownFaults(3, "a", 0.2)}


def test_effects_that_are_not_the_declared_ones_count() -> None:
    law = all_laws()["a_module_updates_its_buffers_once"]
    (mutant,) = (one for one in mutants() if one.name == "runs-a-module-a-third-time")
    assert found_faults._share(Explorer("cpu", replace(EVERY_CASE, cases=6), 0), law, mutant) > 0


@pytest.fixture
def shows(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Explorer, Mutant], float]], None]:
    """Says in which share of an explorer's programs a mutant shows."""

    def say(share: Callable[[Explorer, Mutant], float]) -> None:
        monkeypatch.setattr(found_faults, "_share", lambda explorer, law, mutant: share(explorer, mutant))

    return say


def test_a_mutant_that_the_quick_profile_does_not_show_counts_as_rarer(shows: Any) -> None:
    first: list[str] = []

    def share(explorer: Explorer, mutant: Mutant) -> float:
        first.append(mutant.name)
        return 1.0 if first.count(mutant.name) == 1 or explorer.profile.cases > 9 else 0.0

    shows(share)
    assert set(of_mutants(LAW).values()) == {0.25}  # 4 cases, then 7, then 12 are needed


def test_a_mutant_that_shows_in_no_program_counts_as_half_a_program(shows: Any) -> None:
    shows(lambda explorer, mutant: 0.0 if explorer.profile.cases == EVERY_CASE.cases else 1.0)
    programs = len(Explorer("cpu", EVERY_CASE, 0).programs(all_laws()[LAW], get("nested")))
    assert set(of_mutants(LAW).values()) == {0.5 / programs}


def test_the_score_of_a_family_is_that_of_its_least_certain_law() -> None:
    laws = [law for law in all_laws().values() if law.family == "training"][:2]
    found = {laws[0].name: KnownFaults(3, "often", 1.0), laws[1].name: KnownFaults(1, "seldom", 0.001)}
    table = score_page.markdown(laws, found, Counter({laws[0].name: 2}))
    family, every = (line.split(" | ") for line in table.splitlines()[2:])
    quick, default = (score_page.certainty(laws[1], found[laws[1].name], run) for run in score_page.RUNS)
    assert family[1:6] == ["2", "2", "2", "`seldom`", "0.1%"]
    assert family[6:] == [f"{quick:.0%}", "1", f"{default:.0%}", "1 |"]
    assert 0 < quick < default < score_page.LEAST
    assert every[1:] == family[1:]


def test_a_family_without_a_known_fault_has_no_score() -> None:
    law = next(iter(all_laws().values()))
    assert score_page.markdown([law], {}, Counter()).splitlines()[2].split(" | ")[1:4] == ["1", "0", "0"]
