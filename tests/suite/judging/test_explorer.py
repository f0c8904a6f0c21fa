"""Holding an implementation to a law: floors, the worst case, declarations in both directions, shrinking."""

from __future__ import annotations

import gc
import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from conformance.judging import judge as judging
from conformance.judging.explorer import Explorer
from conformance.judging.judge import Case
from conformance.judging.law import Law
from conformance.judging.program_size import operations
from conformance.judging.verdicts import Diverges, Hangs, Verdict
from conformance.programs.program import Named, Program
from conformance.programs.strategies import named, programs
from impls import Implementation, Known, get
from impls.implementation import known
from impls.nested import checkpoint as nested
from impls.plain import checkpoint as plain
from tests.support.numbered_programs import (
    NESTED,
    PROFILE,
    Checkpoint,
    by_number,
    crashing,
    deep,
    diverging,
    equal,
    held,
    made,
    numbered,
    refusing,
    zero,
)


def test_a_right_implementation_is_as_declared() -> None:
    result = held(made())
    assert (result.verdict, result.cases, result.vacuous, result.as_declared) == (Verdict.AGREES, 4, "", True)
    assert result.program is None


def test_an_implementation_that_never_recomputes_does_not_pass() -> None:
    result = held(made(), plain)
    assert result.verdict is Verdict.AGREES
    assert result.vacuous == "only 0 of 4 cases prove anything, 3 must: {'nothing was recomputed': 4}"
    assert not result.as_declared


def test_one_that_does_not_claim_to_recompute_passes() -> None:
    assert held(made(), plain, get("plain")).as_declared


def test_a_law_of_zero_gradients_does_not_pass() -> None:
    assert "all gradients are zero" in held(made(program=zero)).vacuous
    assert held(made(program=zero, gradients=False)).as_declared


@pytest.mark.parametrize(("floor", "passes"), [(4, True), (5, False)])
def test_a_law_with_fewer_cases_than_its_floor_does_not_pass(floor: int, passes: bool) -> None:
    assert held(made(floor=floor)).as_declared is passes


@pytest.mark.parametrize(
    ("behaviours", "verdict"),
    [
        ({"n1": refusing}, Verdict.REFUSES),
        ({"n1": refusing, "n2": crashing}, Verdict.CRASHES),
        ({"n1": diverging, "n2": crashing, "n3": refusing}, Verdict.DIVERGES),
    ],
    ids=["refuses", "crashes", "diverges"],
)
def test_the_worst_verdict_counts(behaviours: dict[str, Checkpoint], verdict: Verdict) -> None:
    result = held(made(), by_number(**behaviours))
    assert result.verdict is verdict
    assert not result.as_declared
    assert result.counts[verdict] == 1
    assert result.counts[Verdict.AGREES] == 4 - len(behaviours)


@pytest.mark.parametrize(
    ("needs", "checkpoint", "as_declared"),
    [
        ({"rng"}, refusing, True),
        ({"rng"}, nested, False),  # a limit that is gone is as wrong as a claim that is broken
        ({"rng"}, diverging, False),
        (set(), refusing, False),
    ],
)
def test_what_is_not_claimed_must_refuse(needs: set[str], checkpoint: Checkpoint, as_declared: bool) -> None:
    declares = Implementation("modest", checkpoint, capabilities=NESTED.capabilities - {"rng"})
    assert held(made(needs=frozenset(needs)), checkpoint, declares).as_declared is as_declared


@pytest.mark.parametrize(("effort", "each"), [(1.5, 2), (0.1, 1)])
def test_each_of_several_strategies_gets_the_same_share_of_the_cases(effort: float, each: int) -> None:
    several = tuple(named(numbered, number=st.integers(tens, tens + 9)) for tens in (10, 20, 30))
    found = Explorer("cpu", replace(PROFILE, cases=4), 0).programs(replace(made(), programs=several, effort=effort), NESTED)
    counts = Counter(dict(program.arguments)["number"] // 10 for program in found if isinstance(program, Named))
    assert counts == {1: each, 2: each, 3: each}


@pytest.mark.parametrize(("seen", "passes"), [("", True), ("three times", False)])
def test_a_declared_divergence_is_judged_against_what_it_is(seen: str, passes: bool) -> None:
    def twice(case: Case) -> None:
        if seen:
            raise Diverges(seen)

    law = made(effects={"twice": twice})
    limit = known("diverges", "it runs twice", "seen here", law.name, effect="twice")
    result = held(law, diverging, replace(NESTED, checkpoint=diverging, known=limit))
    assert (result.verdict, result.as_declared) == (Verdict.DIVERGES, passes)
    assert result.row()["detail"] == (result.detail if passes else "not the declared effect, 'twice': three times")


FLAT = Implementation("flat", nested, capabilities=NESTED.capabilities - {"nesting"})


def once_at_a_time(function: Any, *args: Any) -> Any:
    """A nested checkpoint that refuses to nest."""
    if inside:
        raise RuntimeError("a region is called inside another one; call it outside")

    def entered(*args: Any) -> Any:
        inside.append(None)
        try:
            return function(*args)
        finally:
            inside.pop()

    return nested(entered, *args)


inside: list[None] = []


@pytest.mark.parametrize(("needs", "verdict"), [(frozenset(), Verdict.AGREES), (frozenset({"nesting"}), Verdict.REFUSES)])
def test_what_nests_is_left_out_where_it_is_neither_claimed_nor_needed(needs: frozenset[str], verdict: Verdict) -> None:
    law = Law("made", "family", "It holds.", equal, programs(always=["nesting"]), needs)
    explorer = Explorer("cpu", PROFILE, 0)
    result = explorer.hold(law, Implementation("fake", once_at_a_time), FLAT)
    assert (result.verdict, result.as_declared) == (verdict, True)
    assert any(explorer.reference(program, "cpu", "checkpoint").nested for program in explorer.programs(law, NESTED))


def test_the_floor_falls_with_the_programs_that_are_left_out() -> None:
    def either(checkpoint: Any, note: Any, device: str, *, nested: bool, number: int) -> None:
        x = torch.ones(2, device=device, requires_grad=True)
        note("leaves", (x,))
        y = checkpoint(lambda h: checkpoint(torch.sin, h).cos() if nested else h.sin().cos() * number, x)
        note("forward", y)
        y.sum().backward()
        note("gradients 0", [x.grad])

    drawn = named(either, nested=st.booleans(), number=st.integers(1, 3))
    law = Law("made", "family", "It holds.", equal, drawn, floor=4)
    explorer = Explorer("cpu", PROFILE, 0)
    assert (explorer.floor(law, NESTED), explorer.floor(law, FLAT)) == (4, 3)  # 3 of 4 are left: one nests
    assert explorer.hold(law, Implementation("fake", nested), FLAT).as_declared
    assert not explorer.hold(law, Implementation("fake", plain), FLAT).as_declared


def test_a_law_that_has_only_nested_programs_has_to_need_nesting() -> None:
    law = made(program=deep)
    assert held(law).as_declared
    with pytest.raises(ValueError, match="law made has no programs for what 'flat' claims"):
        held(law, declares=FLAT)


@pytest.mark.parametrize("checkpoint", [nested, refusing, crashing, diverging])
def test_a_known_verdict_must_show_up(checkpoint: Checkpoint) -> None:
    declares = Implementation(
        "open", checkpoint, capabilities=NESTED.capabilities, known={"made": Known("diverges", "doubles", "here")}
    )
    assert held(made(), checkpoint, declares).as_declared is (checkpoint is diverging)


@pytest.mark.parametrize(
    ("expected", "passing"),
    [("agrees", [nested]), ("refuses", [nested, refusing]), ("diverges", [nested, refusing, crashing, diverging])],
)
def test_what_declares_nothing_is_judged_by_rank(expected: Any, passing: list[Checkpoint]) -> None:
    like = Implementation("like", nested, capabilities=NESTED.capabilities, known={"made": Known(expected, "reason", "source")})
    for checkpoint in (nested, refusing, crashing, diverging):
        assert held(made(), checkpoint, like, declared=False).as_declared is (checkpoint in passing)


def test_a_law_that_hangs_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SECONDS_PER_CASE", 1)
    asked: list[Any] = []

    def check(case: Case) -> None:
        asked.append(case)
        raise Hangs("no answer in time")

    result = held(made(check))
    assert result.verdict is Verdict.HANGS
    assert result.program is not None
    assert len(asked) == 2


def test_a_single_hang_is_taken_for_a_busy_machine() -> None:
    asked: list[Any] = []

    def check(case: Case) -> None:
        asked.append(case.equals_plain())
        if len(asked) == 1:
            raise Hangs("no answer in time")

    assert held(made(check)).as_declared


def test_a_fault_of_a_law_is_no_verdict() -> None:
    def check(case: Case) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        held(made(check))


def test_the_collector_and_pythons_randomness_are_left_alone() -> None:
    seen: list[bool] = []

    def check(case: Case) -> None:
        seen.append(gc.isenabled())
        random.random()
        case.equals_plain()

    before = random.getstate()
    held(made(check))
    assert random.getstate() == before
    assert gc.isenabled()
    assert not any(seen)


def test_what_is_shown_is_the_smallest_program_with_the_verdict() -> None:
    def check(case: Case) -> None:
        assert isinstance(case.program, Program)
        if "torch.tanh" in case.program.source and len(case.program.regions) > 1:
            raise Diverges("two regions and a tanh")

    result = held(Law("made", "family", "It holds.", check, programs(), recomputes=False))
    assert isinstance(result.program, Program)
    assert operations(result.program, "cpu") <= 3
    assert len(result.program.regions) == 2


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_verdicts_and_cases(seed: int) -> None:
    law = Law("made", "family", "It holds.", equal, programs())

    def row() -> dict[str, Any]:
        return {
            **Explorer("cpu", PROFILE, seed).hold(law, Implementation("fake", diverging), NESTED).row(),
            "seconds": 0,
        }

    assert row() == row()


@pytest.mark.parametrize("seed", [None, 2])
def test_a_rare_program_is_drawn_again_to_be_shrunk(seed: int | None) -> None:
    """What only many cases show, or those of a declared seed, is shown by the smallest program too."""

    def check(case: Case) -> None:
        if int(re.findall(r"number = (\d+)", case.program.source)[0]) >= 990:
            raise Diverges("a large number")
        case.equals_plain()

    law = Law("made", "family", "It holds.", check, named(numbered, number=st.sampled_from(range(1000))), floor=3)
    limit = Known("diverges", "large numbers", "here", seed=seed)
    declares = Implementation("open", nested, capabilities=NESTED.capabilities, known={"made": limit})
    assert held(law).as_declared, "the few cases of the run's own seed show nothing"
    result = held(law, nested, declares)
    assert result.as_declared
    assert result.program is not None
    assert "number = 990\n" in result.program.source
