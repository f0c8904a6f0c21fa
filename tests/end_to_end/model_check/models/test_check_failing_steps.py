"""reprise check: an error without checkpointing is told with the part of the step that it ended, and the user's line."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from reprise.model_check.checking import check
from reprise.model_check.errors import NotAccepted, PlainFails
from reprise.model_check.names.globs import NoRegions
from tests.support.checked_models import built


def failing(in_backward: bool, number: int) -> Callable[[], Any]:
    """A ``build`` of models that fail in a step of this number."""

    def fails(gradient: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    def made() -> Any:
        calls = itertools.count(1)

        def after(_: Any, x: torch.Tensor) -> torch.Tensor:
            if next(calls) == number:
                x.register_hook(fails) if in_backward else fails(x)
            return x

        return built(after)()

    return made


def failing_in_update() -> Any:
    """Its gradient has another dtype than its parameter after forward of the second step, which SGD does not take."""
    model, x = built()()
    calls = itertools.count(1)

    def replaces(one: torch.Tensor) -> None:
        if next(calls) == 2:
            one.grad = None
            one.requires_grad_(False)
            one.resize_(2, 8)
            one.grad = torch.ones(2, 8)
            one.resize_(8, 8)

    model.first.weight.register_post_accumulate_grad_hook(replaces)
    return model, x


@pytest.mark.parametrize(
    ("in_backward", "number", "part"),
    [
        (False, 1, "forward of step 1"),
        (False, 2, "forward of step 2"),
        (True, 1, "backward of step 1"),
        (True, 3, "backward of step 3"),
    ],
)
def test_the_part_of_the_step_that_fails_is_told(in_backward: bool, number: int, part: str) -> None:
    line = failing.__code__.co_firstlineno + 4
    told = rf"fails without checkpointing, in {part} at .*test_check_failing_steps\.py:{line}: KeyError: 'mine'"
    with pytest.raises(PlainFails, match=told):
        check(failing(in_backward, number), impl="nested", steps=3)


def test_an_error_of_the_update_is_told_as_such() -> None:
    with pytest.raises(PlainFails, match="fails without checkpointing, in SGD's update of step 2: RuntimeError"):
        check(failing_in_update, impl="nested")


@pytest.mark.parametrize(("what", "error"), [(None, NotAccepted), (lambda: (nn.Linear(8, 8), torch.ones(1, 8)), NoRegions)])
def test_a_build_that_goes_wrong_in_a_later_run_is_told_as_bad_input(what: Any, error: type[Exception]) -> None:
    """Whichever of the runs of a check that explains it is, of which there are more than eight."""

    def drawing(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * random.random()

    def made(runs: int) -> Any:
        return built(drawing)() if next(calls) < runs else what and what()

    for number in itertools.count():
        calls = itertools.count()
        try:
            check(functools.partial(made, number), impl="nested", steps=1, explain=True)
        except error:
            continue
        break
    assert number > 8
