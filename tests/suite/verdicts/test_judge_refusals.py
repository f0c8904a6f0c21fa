"""A law that takes an error for an answer: which errors are one, and which prove nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.judging.judge import Case, judge
from conformance.judging.verdicts import Verdict
from impls import Implementation, Known, get
from impls.nested import checkpoint as nested
from tests.support.numbered_programs import by_number, held, made, refusing
from tests.support.single_cases import case, raising


def answers(one: Case) -> None:
    one.equals_plain_or_refuses()


@pytest.mark.parametrize(("in_forward", "vacuous"), [(False, "the call itself is refused"), (True, "")])
def test_a_call_that_is_refused_proves_nothing_of_what_comes_later(in_forward: bool, vacuous: str) -> None:
    def check(one: Case) -> None:
        one.equals_plain_or_refuses(in_forward=in_forward)

    found = judge(check, case(raising(RuntimeError("no recomputation; do that"))), recomputes=False, gradients=True)
    assert (found.verdict, found.vacuous) == (Verdict.AGREES, vacuous)


@pytest.mark.parametrize(
    ("refused", "counts"), [(["n0"], {Verdict.AGREES: 4}), (["n0", "n2"], {Verdict.AGREES: 2, Verdict.REFUSES: 2})]
)
def test_where_too_few_calls_are_taken_the_law_is_refused(refused: list[str], counts: dict[Verdict, int]) -> None:
    """Three of four must prove something."""
    found = held(made(answers), by_number(**dict.fromkeys(refused, refusing)))
    assert (found.counts, found.vacuous) == (counts, "")
    assert found.verdict is max(counts, key=lambda verdict: verdict.severity)
    assert found.detail == ("NotImplementedError: recomputation of this number is not supported" if len(counts) > 1 else "")


def test_a_refusal_of_calls_can_be_declared() -> None:
    limit = {"made": Known("refuses", "why", "where")}
    declares = Implementation("fake", nested, known=limit, capabilities=get("nested").capabilities)
    found = held(made(answers), refusing, declares)
    assert (found.verdict, found.cases, found.as_declared) == (Verdict.REFUSES, 4, True)


def test_an_error_in_backward_is_an_answer() -> None:
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise RuntimeError("this backward is not supported; do that")

    one = case(lambda function, x: Refusing.apply(function(x)))
    found = judge(answers, one, recomputes=False, gradients=True)
    assert (found.verdict, found.vacuous) == (Verdict.AGREES, "")
