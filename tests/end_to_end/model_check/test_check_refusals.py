"""What a check does not accept, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from impls import Implementation, get
from reprise.model_check.checking import check
from tests.support.checked_models import built


def named(name: str) -> Implementation:
    return Implementation(name, kind="checkpoint", summary="x", source="x", declared=False, checkpoint=get("nested").checkpoint)


@pytest.mark.parametrize("impl", [[named("mine"), named("other"), named("mine")], ["nested", named("nested")]])
def test_two_implementations_of_one_name_are_refused(impl: list[Any]) -> None:
    """A report could not say which of them it is about."""
    name = "nested" if impl[0] == "nested" else "mine"
    with pytest.raises(ValueError, match=f"impl has '{name}' 2 times; give each implementation a name of its own"):
        check(built(), impl=impl, steps=1)


def test_gradients_that_a_hook_takes_away_are_not_called_zero() -> None:
    def updated(parameter: torch.Tensor) -> None:
        parameter.grad = None

    def build() -> Any:
        model, x = built()()
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(updated)
        return model, x

    with pytest.raises(TypeError, match="no parameter has a gradient after the plain step's backward"):
        check(build, impl="nested", steps=1)
