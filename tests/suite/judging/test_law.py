"""The registry of laws, on which devices a law is judged, and the share of cases that something slow is held to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.explorer import Explorer
from conformance.judging.judge import Case
from conformance.judging.law import Law, Profile
from conformance.judging.result import Result
from conformance.judging.verdicts import Refuses
from conformance.programs.strategies import named, programs
from impls import Implementation, Known, get
from impls.nested import checkpoint as nested

NESTED = get("nested")
PROFILE = Profile(12, 60, True)


def _numbered(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    checkpoint(lambda h, number: h.sin().exp(), x, number).sum().backward()
    note("gradients 0", [x.grad])


def equal(case: Case) -> None:
    """The law that most laws are."""
    case.equals_plain()


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[str, Law]:
    """An empty registry of laws."""
    found: dict[str, Law] = {}
    monkeypatch.setattr(laws, "LAWS", found)
    return found


def test_a_law_takes_name_and_statement_from_its_test(registry: dict[str, Law]) -> None:
    @laws.law(programs(), family="fruit", floor=7, early_stop=False)
    def test_apples_fall(case: Case) -> None:
        """Apples fall.

        More of it.
        """

    law = registry["apples_fall"]
    assert (law.family, law.statement, law.floor, law.options) == ("fruit", "Apples fall.", 7, {"early_stop": False})


def test_a_law_without_a_statement_is_refused(registry: dict[str, Law]) -> None:
    def test_nothing(case: Case) -> None: ...

    with pytest.raises(ValueError, match="test_nothing has no statement"):
        laws.law(programs())(test_nothing)


def test_two_laws_of_one_name_are_refused(registry: dict[str, Law]) -> None:
    def test_twice(case: Case) -> None:
        """It holds."""

    laws.law(programs(), family="one")(test_twice)
    with pytest.raises(ValueError, match="two laws are called twice: in one and in other"):
        laws.law(programs(), family="other")(test_twice)


def test_a_law_says_what_a_device_lacks_for_it() -> None:
    anywhere = Law("made", "family", "It holds.", equal, programs())
    of_cuda = replace(anywhere, devices=frozenset({"cuda", "xpu"}))
    assert (anywhere.lacks("cpu"), anywhere.lacks("cuda:1"), of_cuda.lacks("cuda:1")) == ("", "", "")
    assert of_cuda.lacks("cpu") == "a device of type cuda or xpu"
    assert replace(anywhere, at_least=2).lacks("cpu") == "2 devices of type cpu, of which there is 1"


def test_what_takes_long_may_be_held_to_a_share_of_the_cases() -> None:
    law, slow = Law("made", "family", "It holds.", equal, programs(), floor=8), replace(NESTED, share=0.25)
    explorer = Explorer("cpu", PROFILE, 0)
    all_of_them, some = explorer.programs(law, NESTED), explorer.programs(law, slow)
    assert len(some) == 3
    assert {program.source for program in some} <= {program.source for program in all_of_them}
    assert (explorer.floor(law, NESTED), explorer.floor(law, slow)) == (8, 2)


@pytest.mark.parametrize("share", [0, -1, 1.5])
def test_a_share_is_a_part_of_the_whole(share: float) -> None:
    with pytest.raises(ValueError, match="it must be more than 0 and at most 1"):
        replace(NESTED, share=share)


def test_a_missing_capability_is_looked_for_in_a_tenth_of_the_cases() -> None:
    law = Law("made", "family", "It holds.", equal, named(_numbered, number=st.integers(0, 10**9)), floor=3)
    asking = replace(law, needs=frozenset({"autocast"}))
    without = Implementation("open", nested, capabilities=NESTED.capabilities - {"autocast"})
    limited = replace(without, known={"made": Known("refuses", "why", "where")})
    explorer = Explorer("cpu", replace(PROFILE, patience=400), 0)
    cases = [explorer.hold(asking, one, one).cases for one in (without, limited)]
    assert cases[0] < cases[1] / 5
    assert cases[0] >= PROFILE.cases


def test_a_rare_limit_is_looked_for_under_the_seed_that_it_names() -> None:
    digits = st.tuples(*[st.integers(0, 99)] * 4)  # of larger ranges Hypothesis draws what it finds in modules
    numbers = digits.map(lambda drawn: sum(digit * 100**place for place, digit in enumerate(drawn)))
    law = Law("made", "family", "It holds.", equal, named(_numbered, number=numbers), floor=3)
    explorer = Explorer("cpu", replace(PROFILE, patience=24), 0)

    def numbers_of(seed: int | None) -> set[int]:
        drawn: set[int] = set()
        explorer.draw(law, NESTED, lambda program: drawn.add(dict(program.arguments)["number"]), times=2, seed=seed)
        return drawn

    rare = (numbers_of(5) - numbers_of(None)).pop()

    def wrong_for_one(function: Any, x: torch.Tensor, number: int) -> Any:
        return nested(function, x, number) * (2 if number == rare else 1)

    def judged(seed: int | None) -> Result:
        limits = {"made": Known("diverges", "doubles", "here", seed)}
        one = Implementation("open", wrong_for_one, capabilities=NESTED.capabilities, known=limits)
        return explorer.hold(law, one, one)

    assert judged(5).as_declared
    assert not judged(None).as_declared
    assert not judged(6).as_declared


@pytest.mark.parametrize(("refused", "verdict"), [(range(8), "agrees"), (range(9), "refuses")])
def test_a_law_is_refused_only_if_no_case_of_many_is_taken(refused: range, verdict: str) -> None:
    def kept_or_refused(case: Case) -> None:
        try:
            case.equals_plain()
        except Refuses as refusal:
            case.refusal = refusal.detail

    def refusing(function: Any, x: torch.Tensor, number: int) -> Any:
        if number in refused:
            raise RuntimeError("no recomputation takes this number")
        return nested(function, x, number)

    law = Law("made", "family", "It holds.", kept_or_refused, named(_numbered, number=st.integers(0, 8)), floor=1)
    one = Implementation("open", refusing, capabilities=NESTED.capabilities)
    explorer = Explorer("cpu", replace(PROFILE, cases=1), 0)
    drawn = [dict(program.arguments)["number"] for program in explorer.programs(law, one)]  # type: ignore[attr-defined]
    assert drawn == [0]  # the one case of the profile, which is refused
    result = explorer.hold(law, one, one)
    assert result.verdict.value == verdict
    assert 1 < result.cases <= 9
