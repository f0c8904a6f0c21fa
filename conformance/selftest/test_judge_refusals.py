"""A law that takes an error for an answer: which errors are one, and which prove nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.judge import Case, judge
from conformance.selftest.single_cases import case, raising
from conformance.verdicts import Verdict


def answers(one: Case) -> None:
    one.equals_plain_or_refuses()


@pytest.mark.parametrize(("in_forward", "vacuous"), [(False, "the call itself is refused"), (True, "")])
def test_a_call_that_is_refused_proves_nothing_of_what_comes_later(in_forward: bool, vacuous: str) -> None:
    def check(one: Case) -> None:
        one.equals_plain_or_refuses(in_forward=in_forward)

    found = judge(check, case(raising(RuntimeError("this is not supported; do that"))), recomputes=False, gradients=True)
    assert (found.verdict, found.vacuous) == (Verdict.AGREES, vacuous)


def test_an_error_in_backward_is_an_answer() -> None:
    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            raise RuntimeError("this is not supported; do that")

    one = case(lambda function, x: Refusing.apply(function(x)))
    found = judge(answers, one, recomputes=False, gradients=True)
    assert (found.verdict, found.vacuous) == (Verdict.AGREES, "")
