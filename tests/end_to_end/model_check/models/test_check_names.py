"""reprise check: a region is named by its module's path, also if the module has a forward of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check.checking import check
from tests.support.checked_models import built


def by_function(layer: Any) -> Any:
    before = layer.forward
    return lambda x: before(x).sin()


def by_partial(layer: Any) -> Any:
    return functools.partial(by_function(layer))


def by_method_of_another(layer: Any) -> Any:
    return nn.Sequential(nn.Linear(8, 8)).forward


FORWARDS = [by_function, by_partial, by_method_of_another]


def with_own_forward(own: Callable[[Any], Any], call: Callable[..., Any]) -> Any:
    model, x = built(call=call)()
    model.layers[1].forward = own(model.layers[1])
    return model, x


def passing_forward(layer: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(layer.forward, x, use_reentrant=False)


@pytest.mark.parametrize("own", FORWARDS)
def test_a_module_with_a_forward_of_its_own_is_named_as_others_are(own: Any) -> None:
    globbed = check(lambda: with_own_forward(own, lambda layer, x: layer(x)), regions="layers.*", impl="nested", steps=1)
    called = check(lambda: with_own_forward(own, passing_forward), impl="nested", steps=1)
    assert globbed.regions == called.regions == ("layers.0", "layers.1", "layers.2")


def test_a_forward_that_a_glob_names_too_has_its_modules_name() -> None:
    report = check(built(call=passing_forward), regions="layers.*", impl="nested", steps=1)
    assert report.regions == tuple(f"layers.{number}" for number in (0, 0, 1, 1, 2, 2))
