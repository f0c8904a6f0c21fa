"""reprise check: warnings of draws, flips and caches name the user's line, and the trace function is taken off again."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from random import random as bound_early
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check import user_lines
from reprise.model_check.checking import check
from tests.support.checked_models import Block, built

pytestmark = pytest.mark.skipif(sys.gettrace() is not None, reason="a trace function is set, as by a debugger")
IMPLS = ["torch-nonreentrant", "torch-reentrant", "nested"]


def drawing(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    factor = random.uniform(0, 1)  # the line
    return y * factor


def drawing_by_a_name_bound_early(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    factor = bound_early()  # the line
    return y * factor


def drawing_of_numpy(_: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    return y * float(np.random.rand())  # the line


def flipping(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    self.eval()  # the line
    return y


def appending(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    self.kept.append(y.detach())  # the line
    return y * len(self.kept)


def adding(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    self.sum = getattr(self, "sum", 0) + y.detach()  # the line
    return y * self.sum


PLANTED: list[tuple[str, Block]] = [
    ("Python's random numbers", drawing),
    ("Python's random numbers", drawing_by_a_name_bound_early),
    ("numpy's random numbers", drawing_of_numpy),
    ("training flags", flipping),
    ("cache", appending),
    ("cache", adding),
]


class Filling(nn.Module):
    """Fills the cache that it is passed."""

    def __init__(self, fill: Callable[[Any, torch.Tensor], torch.Tensor], name: str | None, cache: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.layer, self.cache, self.name = nn.Linear(8, 8), Passed(fill), cache, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = {} if self.name is None else {self.name: self.cache()}
        args = (self.cache(),) if self.name is None else ()
        return checkpoint(self.layer, self.first(x), *args, use_reentrant=False, **given)


class Passed(nn.Module):
    """Calls a function with its cache."""

    def __init__(self, fill: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.fill = fill

    def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
        return self.fill(cache, x.sin()).exp()


class Kept:
    """A cache with a list, as of transformers."""

    def __init__(self) -> None:
        self.keys: list[torch.Tensor] = []


def appending_to_it(cache: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    cache.append(y.detach())  # the line
    return y * len(cache)


def putting_into_it(cache: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    cache["sum"] = y.detach() + cache.get("sum", 0)  # the line
    return y * cache["sum"]


def appending_to_its_keys(cache: Any, x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    cache.keys.append(y.detach())  # the line
    return y * len(cache.keys)


PASSED = {
    "a list": (appending_to_it, None, list, "layer(argument 1)"),
    "a list by its name": (appending_to_it, "cache", list, "layer(cache)"),
    "a dict": (putting_into_it, None, dict, "layer(argument 1)"),
    "a dict by its name": (putting_into_it, "cache", dict, "layer(cache)"),
    "an object with a list": (appending_to_its_keys, None, Kept, "layer(argument 1).keys"),
}


@pytest.mark.parametrize("passed", PASSED)
def test_the_line_that_fills_a_cache_that_is_an_argument_is_named(passed: str) -> None:
    fill, name, cache, place = PASSED[passed]

    def made() -> Any:
        return Filling(fill, name, cache), torch.randn(4, 8)

    (result,) = check(made, impl="torch-nonreentrant", steps=1, explain=True).results
    found = [one for warned in result.warnings if warned.kind == "cache" for one in warned.places]
    assert found
    assert all(one.startswith(place) and one.endswith(f"({line_of(fill)})") for one in found)


def line_of(function: Callable[..., Any]) -> str:
    """The line with the comment."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    after = [*enumerate(lines, 1)][function.__code__.co_firstlineno :]
    return f"{__file__}:{next(number for number, line in after if line.endswith('# the line'))}"


def places_of(after: Block, impl: str | Implementation, kind: str) -> list[str]:
    (result,) = check(built(after), impl=impl, steps=1).results
    return [place for one in result.warnings if one.kind == kind for place in one.places]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize(("kind", "after"), PLANTED)
def test_the_users_line_is_named(impl: str, kind: str, after: Block) -> None:
    found = places_of(after, impl, kind)
    assert found
    assert {place.partition(" (")[2] for place in found} == {f"{line_of(after)})"}


def test_a_flip_outside_of_regions_is_named() -> None:
    class Flipping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, _ = built()()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.model(x)
            self.model.layers[1].eval()  # the line
            return y

    (result,) = check(lambda: (Flipping(), torch.randn(4, 8)), impl="nested", steps=1).results
    (warned,) = result.warnings
    assert warned.places[0] == f"model.layers.1 ({line_of(Flipping.forward)})"


def test_a_users_trace_function_stays_and_calls_are_named() -> None:
    def trace(*_: Any) -> None:
        return None

    sys.settrace(trace)
    try:
        (place,) = places_of(drawing, "nested", "Python's random numbers")
        assert sys.gettrace() is trace
    finally:
        sys.settrace(None)
    assert place.startswith("layers.1 (")
    assert line_of(drawing) not in place


@pytest.mark.parametrize("error", [KeyboardInterrupt(), KeyError("x"), None], ids=repr)
def test_no_trace_function_is_left(error: BaseException | None) -> None:
    traced: list[bool] = []

    def ends(_: Any, x: torch.Tensor) -> torch.Tensor:
        traced.append(sys.gettrace() is not None)
        if traced[-1] and error is not None:
            raise error
        return x * random.random()

    try:
        check(built(ends), impl="torch-nonreentrant", steps=1)
    except KeyboardInterrupt:
        assert isinstance(error, KeyboardInterrupt)
    assert any(traced)
    assert sys.gettrace() is None


def test_an_error_of_the_trace_function_ends_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> None:
        raise KeyError("our own")

    monkeypatch.setattr(user_lines._Trace, "_compare", breaks)
    (place,) = places_of(drawing, "nested", "Python's random numbers")
    assert place.startswith("layers.1 (")
    assert line_of(drawing) not in place
