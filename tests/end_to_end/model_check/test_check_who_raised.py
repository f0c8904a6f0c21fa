"""reprise check: whose an error is, where the user's model and implementation lie in one package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from impls import Implementation
from impls.nested import checkpoint as nested
from reprise.model_check.checking import check
from reprise.model_check.errors import raised_by
from reprise.model_check.regions import current_run
from reprise.model_check.report import NOT_TOLD_APART, Result
from tests.support import checked_models
from tests.support.checked_models import Block, built


def checkpoint(function: Any, *args: Any) -> Any:
    """One that hands on to nested."""
    return nested(function, *args)


def refusing(function: Any, *args: Any) -> Any:
    return fails(args[0])


def refusing_as_it_packs(function: Any, *args: Any) -> Any:
    def pack(tensor: torch.Tensor) -> Any:
        raise ValueError("ours")

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda packed: packed):
        return function(*args)


def fails(x: torch.Tensor) -> torch.Tensor:
    """Used by the model and by the implementation, both of this file."""
    raise ValueError("whose?")


def is_again() -> bool:
    one = current_run()
    return one is not None and one.number > 0


def method_fails(_: Any, x: torch.Tensor) -> torch.Tensor:
    if is_again():
        raise ValueError("mine")
    return x


def function_fails(_: Any, x: torch.Tensor) -> torch.Tensor:
    return fails(x) if is_again() else x


def right(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x


def checked(after: Block, function: Callable[..., Any]) -> tuple[Result, str]:
    """A check of a model that is built in this file, as the implementation is."""

    def build() -> Any:
        return built(after)()

    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)
    report = check(build, impl=one, steps=1)
    return report.results[0], str(report)


CASES = [
    (method_fails, checkpoint, "crashes", "model"),
    (right, refusing, "refuses", "implementation"),
    (right, refusing_as_it_packs, "refuses", "implementation"),
    (function_fails, checkpoint, "crashes", "cannot be told"),
]


@pytest.mark.parametrize(("after", "function", "verdict", "raiser"), CASES)
def test_whose_an_error_is_in_a_file_that_both_share(after: Block, function: Any, verdict: str, raiser: str) -> None:
    result, text = checked(after, function)
    assert (result.verdict, result.raised_by) == (verdict, raiser)
    assert (NOT_TOLD_APART in text) is (raiser == "cannot be told")


@pytest.mark.parametrize(
    ("sources", "raiser"),
    [
        ({checked_models.__file__}, "implementation"),  # in the package, but not in the file that raises
        ({"/elsewhere/model.py"}, "implementation"),
        ({__file__}, "cannot be told"),
    ],
)
def test_what_a_file_of_the_implementation_alone_raises_is_its_own(sources: set[str], raiser: str) -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)
    with pytest.raises(ValueError, match="whose") as caught:
        fails(torch.ones(1))
    assert raised_by(caught.value, one, sources) == raiser


def test_what_the_models_file_raises_is_the_models_in_the_implementations_package() -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=built)
    with pytest.raises(ValueError, match="whose") as caught:
        fails(torch.ones(1))
    assert raised_by(caught.value, one, {__file__}) == "model"
