"""How many programs of a law a profile tries, and what happens if too few of them prove something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from conformance.judging import case_numbers
from conformance.judging.case_numbers import KnownFaults, number_of_cases, number_that_finds
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, Law, Profile, all_laws
from conformance.judging.verdicts import Verdict
from conformance.programs.program import Named
from conformance.programs.strategies import named
from impls import Implementation
from impls.nested import checkpoint as nested
from tests.support.numbered_programs import NESTED, equal, made

CERTAIN = Profile(60, 0, False, certainty=0.99, least=12)


@pytest.mark.parametrize(("share", "number"), [(1.0, 12), (0.3, 13), (0.1, 44), (0.01, 60)])
def test_there_are_enough_programs_to_find_the_rarest_fault_again(share: float, number: int) -> None:
    assert round(number_that_finds(KnownFaults(1, "fault", share), made(), CERTAIN)) == number


def test_a_law_that_has_found_nothing_gets_all_programs() -> None:
    assert number_that_finds(None, made(), CERTAIN) == 60


def test_effort_scales_the_most_and_the_least() -> None:
    assert number_that_finds(KnownFaults(1, "fault", 0.01), made(effort=0.5), CERTAIN) == 30
    assert number_that_finds(KnownFaults(1, "fault", 1.0), made(effort=0.5), CERTAIN) == 6


def test_other_profiles_do_not_ask_for_known_faults() -> None:
    for name in PROFILES.keys() - {"quick", "default"}:
        profile = PROFILES[name]
        assert all(number_of_cases(law, profile) == profile.cases * law.effort for law in all_laws().values())


@pytest.mark.parametrize(("faults", "share"), [(0, 0.5), (1, 0.0), (1, 1.5)])
def test_a_share_that_cannot_be_is_refused(faults: int, share: float) -> None:
    with pytest.raises(ValueError, match=r"fault: \d faults, share .*; accepted are 1 or more, above 0 to 1"):
        KnownFaults(faults, "fault", share)


def test_every_law_that_was_measured_exists_and_its_quick_number_is_no_larger() -> None:
    assert case_numbers.read().keys() <= all_laws().keys()
    assert all(
        number_of_cases(law, PROFILES["quick"]) <= number_of_cases(law, PROFILES["default"]) for law in all_laws().values()
    )


def mostly_zero(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    y = checkpoint(lambda h, number: h.sin() * (number > 20) * number, x, number)
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [x.grad])


@pytest.fixture
def always_found(monkeypatch: pytest.MonkeyPatch) -> Callable[[Law], None]:
    """Says of a law that each of its programs shows its faults."""

    def say(law: Law) -> None:
        monkeypatch.setattr(case_numbers, "_read", lambda: {law.name: KnownFaults(1, "fault", 1.0)})

    return say


def test_more_programs_are_tried_until_enough_prove_something(always_found: Callable[[Law], None]) -> None:
    law = Law("made", "family", "It holds.", equal, named(mostly_zero, number=st.integers(0, 29)), floor=5)
    always_found(law)
    few = replace(CERTAIN, least=4)
    explorer = Explorer("cpu", few, 0)
    proving = [one for one in explorer.programs(law, NESTED) if isinstance(one, Named) and dict(one.arguments)["number"] > 20]
    assert len(proving) < explorer.floor(law, NESTED) == 2
    result = explorer.hold(law, Implementation("fake", nested), NESTED)
    assert (result.verdict, result.vacuous) == (Verdict.AGREES, "")
    assert result.cases > len(explorer.programs(law, NESTED))


def test_the_floor_is_of_twelve_programs_and_falls_with_their_number(always_found: Callable[[Law], None]) -> None:
    law = made(floor=5)
    always_found(law)
    floors = [Explorer("cpu", replace(CERTAIN, least=least), 0).floor(law, NESTED) for least in (4, 6, 12, 24)]
    assert floors == [2, 3, 5, 5]
