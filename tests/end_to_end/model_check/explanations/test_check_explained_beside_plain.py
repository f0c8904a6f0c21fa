"""reprise check --explain where recomputations do what forward did: forward beside plain, and runs without an operator."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check.checking import check
from reprise.model_check.explanations.explain import (
    ENDED_AT_ONCE,
    NOT_COMPARED_LATER,
    NOTHING_AGAIN,
    OTHER_CALLS,
    SAME_AGAIN,
    UNLIKE_PLAIN,
)
from reprise.model_check.explanations.operator_difference import KEEP_STATE
from tests.support.checked_models import built


def own(function: Any) -> Implementation:
    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)


def doubling_the_input(function: Any, x: torch.Tensor, **_: Any) -> Any:
    return checkpoint(function, 2 * x, use_reentrant=False)


def drawing(function: Any, x: torch.Tensor, **_: Any) -> Any:
    torch.rand(1)
    return checkpoint(function, x, use_reentrant=False)


def in_low_precision(function: Any, x: torch.Tensor, **_: Any) -> Any:
    def run(x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return function(x).float()

    return checkpoint(run, x, use_reentrant=False)


UNLIKE = [
    (doubling_the_input, "reads another value of argument 0 of the region"),
    (drawing, "gives another value for the same inputs"),
    (in_low_precision, "in torch.float32 in plain, in torch.bfloat16 with checkpointing"),
]


@pytest.mark.parametrize(("function", "told"), UNLIKE)
def test_where_forward_differs_from_plains_is_named(function: Any, told: str) -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout())), torch.randn(4, 8)

    (result,) = check(build, impl=own(function), regions="1", explain=True, steps=1).results
    assert result.verdict == "diverges"
    _, unlike, operator, *_ = result.explanation.lines
    assert unlike.startswith(f"{UNLIKE_PLAIN}, in region 1 (")
    assert told in operator


def doubling_the_gradient(function: Any, x: torch.Tensor, **_: Any) -> Any:
    value = checkpoint(function, x, use_reentrant=False)
    value.register_hook(lambda gradient: gradient * 2)
    return value


def test_a_region_whose_values_are_plains_is_said_to_have_them() -> None:
    (result,) = check(built(), impl=own(doubling_the_gradient), explain=True, steps=1).results
    assert result.explanation.lines[-1] == SAME_AGAIN


def test_of_a_later_step_it_is_not_concluded_that_forward_is_plains() -> None:
    calls = 0

    def build() -> Any:
        nonlocal calls
        calls = 0
        return built()()

    def from_the_second_step_on(function: Any, x: torch.Tensor, **_: Any) -> Any:
        nonlocal calls
        calls += 1
        return checkpoint(function, x * (2 if calls > 3 else 1), use_reentrant=False)

    (result,) = check(build, impl=own(from_the_second_step_on), explain=True, steps=2).results
    assert result.verdict == "diverges"
    assert result.explanation.lines[-1] == NOT_COMPARED_LATER


def warming_up(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.runs = vars(self).get("runs", 0) + 1
    return x.tanh() if self.runs <= 2 else x


def doubling_after_two(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.runs = vars(self).get("runs", 0) + 1
    return x * (1 if self.runs <= 2 else 2)


OTHER = [
    (warming_up, "aten.tanh.default in plain, aten.sin.default with checkpointing"),
    (doubling_after_two, "aten.mul.Tensor is called with 1 in plain, with 2 with checkpointing"),
]


@pytest.mark.parametrize(("after", "told"), OTHER)
def test_where_a_number_of_the_regions_own_makes_a_later_step_another_one_is_named(after: Any, told: str) -> None:
    (result,) = check(built(after), impl="torch-nonreentrant", explain=True, steps=2).results
    assert result.verdict == "diverges"
    _, step, unlike, operator, *_ = result.explanation.lines
    assert step == "in step 2:"
    assert unlike.startswith(f"{OTHER_CALLS}, in region layers.1 (")
    assert operator.endswith(told)
    assert result.explanation.remedy == KEEP_STATE


def test_a_function_that_never_ran_is_named() -> None:
    calls = 0

    def build() -> Any:
        nonlocal calls
        calls = 0
        return built()()

    def without_the_second(function: Any, x: torch.Tensor, **_: Any) -> Any:
        nonlocal calls
        calls += 1
        return x if calls == 2 else checkpoint(function, x, use_reentrant=False)

    (result,) = check(build, impl=own(without_the_second), explain=True, steps=1).results
    assert result.verdict == "diverges"
    _, unlike, operator, *_ = result.explanation.lines
    assert unlike.startswith(f"{UNLIKE_PLAIN}, in region layers.")
    assert operator.startswith("operator 0, in module layers.")
    assert operator.endswith("runs in plain alone")


class Sine(nn.Module):
    """Saves its input before its only operator runs, where a recomputation is stopped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


def test_a_recomputation_that_is_stopped_before_its_first_operator_did_run() -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(8, 8), Sine(), nn.Linear(8, 8)), torch.randn(4, 8)

    (result,) = check(build, impl=own(doubling_the_gradient), regions="1", explain=True, steps=1).results
    assert (result.verdict, result.recomputations) == ("diverges", 1)
    assert NOTHING_AGAIN not in result.explanation.lines
    assert result.explanation.lines[-1] == ENDED_AT_ONCE


def test_a_number_that_comes_from_values_is_no_reason_after_the_first_step() -> None:
    """The second layer's gradient is wrong from the second step on; the first one's number follows from its weight."""
    calls = 0

    class Scaled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * self.weight.detach().norm().item()

    def build() -> Any:
        nonlocal calls
        calls = 0
        return nn.Sequential(nn.Linear(8, 8), Scaled(8, 8), nn.Linear(8, 1)), torch.randn(4, 8)

    def wrong_from_the_second_step_on(function: Any, x: torch.Tensor, **_: Any) -> Any:
        nonlocal calls
        calls += 1
        y, factor = checkpoint(function, x, use_reentrant=False), 1 + 0.5 * (calls > 1)
        y.register_hook(lambda gradient: gradient * factor)
        return y

    (result,) = check(build, impl=own(wrong_from_the_second_step_on), regions="1", explain=True, steps=3).results
    assert result.verdict == "diverges"
    assert result.explanation.lines[-1] == NOT_COMPARED_LATER
