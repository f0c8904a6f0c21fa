"""What laws that take ranks say of answers that are given: no world is started."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

import impls
from conformance.distributed.answer import Answer, Collective, Place, sent
from conformance.distributed.case import RankedCase, judge
from conformance.distributed.collectives import RegionStorages
from conformance.distributed.law import all_laws
from conformance.distributed.script import Smaller
from conformance.judging.judge import Observation, Outcome
from conformance.judging.verdicts import Measured, Verdict, freeze
from conformance.programs.sums import DEFAULT

ERROR = "an_error_on_one_rank_is_raised_there"
REGIONS = "each_region_repeats_its_own_collectives"
LEFT = RuntimeError("the other rank left")


def outcome(law: str, plain: list[Answer], seen: list[Answer], **arguments: Any) -> Outcome:
    program = Smaller("", DEFAULT, tuple(arguments.items()))
    case = RankedCase(program, impls.get("nested"), len(plain), lambda _: seen, lambda _: plain, frozenset(), "nested")
    return judge(all_laws()[law].check, case, recomputes=False, gradients=False)  # type: ignore[arg-type]


def answer(rank: int, error: Exception | None = None, **notes: float) -> Answer:
    kept = {label: freeze(torch.full((2,), value)) for label, value in notes.items()}
    return Answer(rank, Observation(notes=kept, error=error), raised=float(error is not None))


PLAIN = [answer(rank, forward=1.0, gradients=2.0) for rank in range(2)]
RAISES = answer(0, ArithmeticError(), forward=1.0)


@pytest.mark.parametrize(
    ("exchange", "other", "verdict"),
    [
        ("no", answer(1, forward=1.0, gradients=2.0), Verdict.AGREES),
        ("no", answer(1, forward=1.0, gradients=3.0), Verdict.DIVERGES),
        ("no", answer(1, LEFT, forward=1.0), Verdict.CRASHES),
        ("before", answer(1, LEFT, forward=1.0), Verdict.AGREES),
        ("before", answer(1, LEFT, forward=3.0), Verdict.DIVERGES),
        ("before", answer(1, LEFT), Verdict.DIVERGES),
        ("before", answer(1, forward=1.0, gradients=2.0), Verdict.DIVERGES),
        ("after", answer(1, LEFT, forward=1.0), Verdict.AGREES),
        ("after", answer(1, forward=1.0, gradients=2.0), Verdict.DIVERGES),
    ],
)
def test_the_others_do_what_plain_does_up_to_the_error_of_one_rank(exchange: str, other: Answer, verdict: Verdict) -> None:
    assert outcome(ERROR, PLAIN, [RAISES, other], on=0, exchange=exchange).verdict is verdict


def test_an_error_that_comes_too_early_is_found() -> None:
    found = outcome(ERROR, PLAIN, [answer(0, ArithmeticError()), PLAIN[1]], on=0, exchange="no")
    assert (found.verdict, found.measured) == (Verdict.DIVERGES, None)
    assert found.detail == "rank 0 raises ArithmeticError() before it notes 'forward'"


def issuing(*collectives: Collective) -> list[Answer]:
    return [Answer(rank, PLAIN[0].observation, collectives=collectives) for rank in range(2)]


def summed(place: Place, *region: str) -> Collective:
    return Collective("allreduce", 4, place, region)


FORWARD, AGAIN = summed("forward", "one"), summed("recomputation", "one")


@pytest.mark.parametrize("more", [summed("recomputation", "two"), summed("forward", "two"), summed("forward")])
def test_a_collective_of_a_region_that_has_none_with_plain_is_counted(more: Collective) -> None:
    assert outcome(REGIONS, issuing(FORWARD), issuing(FORWARD, AGAIN)).verdict is Verdict.AGREES
    assert outcome(REGIONS, issuing(FORWARD), issuing(FORWARD, AGAIN, more)).verdict is Verdict.DIVERGES


@pytest.mark.parametrize("region", [("two",), ()])
def test_a_collective_that_backward_issues_for_another_region_is_found(region: tuple[str, ...]) -> None:
    plain, seen = issuing(FORWARD, summed("backward", "one")), issuing(FORWARD, AGAIN, summed("backward", *region))
    found = outcome(REGIONS, plain, seen)
    assert (found.verdict, found.measured) == (Verdict.DIVERGES, None)
    assert "in backward of region one" in found.detail


@pytest.mark.parametrize(
    ("other", "measured"),
    [
        (Collective("allreduce", 8, "forward", ("one",)), None),
        (summed("backward"), None),
        (Collective("broadcast", 4, "forward", ("one",)), Measured("kernels")),
    ],
)
def test_a_script_shows_another_order_if_names_differ(other: Collective, measured: Measured | None) -> None:
    seen = [issuing(FORWARD)[0], issuing(other)[1]]
    found = outcome("ranks_issue_the_same_collectives", PLAIN, seen)
    assert (found.verdict, found.measured) == (Verdict.DIVERGES, measured)


@pytest.mark.parametrize("size", [2, 4])
def test_a_script_allows_the_rounding_that_the_judge_allows(size: int) -> None:
    plain = [answer(rank, forward=10.0**rank) for rank in range(size)]
    seen = [answer(rank, forward=2.0) for rank in range(size)]
    found = outcome("ddp_with_shared_weights", plain, seen)
    assert found.verdict is Verdict.DIVERGES
    assert (found.units > 1000 * DEFAULT.terms) == (size > 2)
    assert (found.units == 0) == (size == 2)


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([True, False]),
        torch.tensor(0.1, dtype=torch.bfloat16),
        torch.tensor([1 + 2j]).conj(),
        torch.arange(6.0).reshape(2, 3).t(),
        torch.arange(6.0)[::2],
        torch.empty(0, 3),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
)
def test_a_tensor_is_sent_as_it_is(value: torch.Tensor) -> None:
    there = pickle.loads(sent([value]))[0]
    assert (type(there), there.dtype, there.shape, there.requires_grad) == (
        type(value),
        value.dtype,
        value.shape,
        value.requires_grad,
    )
    assert torch.equal(there, value)


def test_what_seems_to_be_kept_is_looked_at_again_until_something_is(monkeypatch: pytest.MonkeyPatch) -> None:
    meter, plain = RegionStorages(3), RegionStorages(3, keeps=True)
    assert [one.looks(label) for one in (meter, plain) for label in ("held 0", "empty 0", "forward")] == [3, 3, 0, 0, 3, 0]
    monkeypatch.setattr(RegionStorages, "counts", {"held 0": 1})
    assert meter.looks("empty 0") == 0
