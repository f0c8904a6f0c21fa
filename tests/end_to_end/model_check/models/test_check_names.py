"""reprise check: a region is named by its module's path, also if the module has a forward of its own."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from reprise.model_check.checking import check
from reprise.model_check.names import region_names
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


class Sequential(nn.Module):
    """Layers in segments, and functions of which some are no modules."""

    def __init__(self, segments: int, *functions: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
        self.segments, self.functions = segments, functions

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint_sequential(self.layers, self.segments, x, use_reentrant=False)
        if not self.functions:
            return x
        functions = [*self.functions, self.layers[0], torch.exp]
        return checkpoint_sequential(functions, 2, x, use_reentrant=False)


def test_segments_of_a_sequential_are_told_apart() -> None:
    report = check(lambda: (Sequential(2), torch.randn(2, 4)), impl="nested", steps=1)
    assert report.regions == ("segment 1 (layers.0 to layers.1)",)  # the last one is not checkpointed
    report = check(lambda: (Sequential(4), torch.randn(2, 4)), impl="nested", steps=1)
    assert report.regions == ("layers.0", "layers.1", "layers.2")


def test_segments_of_a_release_with_other_variables_are_named_as_closures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_names, "_OF_SEGMENT", frozenset({"begin"}))
    report = check(lambda: (Sequential(4), torch.randn(2, 4)), impl="nested", steps=1)
    first = re.fullmatch(r"checkpoint_sequential\.<locals>.*forward at checkpoint\.py:\d+", report.regions[0])
    assert first
    assert report.regions == (first[0], f"{first[0]} (2)", f"{first[0]} (3)")
    assert report.agrees


def test_segments_of_functions_have_the_line_of_their_call() -> None:
    functions = torch.sin, torch.cos
    report = check(lambda: (Sequential(2, *functions), torch.randn(2, 4)), impl="nested", steps=1)
    at = rf"{re.escape(Path(__file__).name)}:{Sequential.forward.__code__.co_firstlineno + 5}"
    first, second = report.regions
    assert first == "segment 1 (layers.0 to layers.1)"
    assert re.fullmatch(rf"segment 1 \(sin to cos\) at {at}", second)


def test_which_segment_diverges_is_told() -> None:
    def made() -> Any:
        model = Sequential(4)
        model.layers[2] = nn.BatchNorm1d(4)
        model.layers.append(nn.Tanh())
        return model, torch.randn(2, 4)

    (result,) = check(made, impl="nested", steps=1, explain=True).results
    assert result.verdict == "diverges"
    assert result.explanation.lines[0].startswith("smallest set of regions that shows it: layers.2 (")


class Closures(nn.Module):
    """Regions that are closures: some of one line, one of another, and one inside another."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(lambda x, layer=layer: layer(x).sin(), x, use_reentrant=False)

        def around(x: torch.Tensor) -> Any:
            return checkpoint(lambda x: self.norm(x), x.sin(), use_reentrant=False)

        return checkpoint(around, x, use_reentrant=False)


def test_closures_are_told_apart_by_line_and_number() -> None:
    report = check(lambda: (Closures(), torch.randn(2, 4)), impl=["nested", "torch-reentrant"], steps=1)
    start = Closures.forward.__code__.co_firstlineno
    name, file = "Closures.forward.<locals>", Path(__file__).name
    first = f"{name}.<lambda> at {file}:{start + 2}"
    inner = f"{name}.around.<locals>.<lambda> at {file}:{start + 5}"
    assert report.regions == (first, f"{first} (2)", f"{first} (3)", f"{name}.around at {file}:{start + 4}", inner)
    assert json.loads(report.as_json())["regions"] == [*report.regions]


def test_which_closure_diverges_is_told() -> None:
    def made() -> Any:
        model: Any = Closures()
        model.layers[1] = nn.BatchNorm1d(4)
        model.norm = nn.Identity()
        return model, torch.randn(2, 4)

    (result,) = check(made, impl="nested", steps=1, explain=True).results
    assert re.match(r"smallest set of regions that shows it: Closures\S+<lambda> at \S+ \(2\) \(", result.explanation.lines[0])


class Halved(nn.Linear):
    """Has a method that runs a part of it."""

    def first_half(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)[:, :4]


def outer_half(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, layer.weight[:, :4], layer.bias)


class Partials(nn.Sequential):
    """Its regions are partials with a module: of its forward, of another method, and of functions."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts: tuple[Callable[..., Any], ...] = Halved.forward, Halved.first_half, outer_half, lambda layer, x: layer(x)
        for layer in self:
            for part in parts:
                x = checkpoint(functools.partial(part, layer), x, use_reentrant=False)
        return x


def test_a_function_that_is_passed_a_module_is_not_taken_for_the_module() -> None:
    report = check(lambda: (Partials(Halved(8, 8), Halved(8, 8)), torch.ones(2, 8)), impl="nested", steps=1)
    closure = "Partials.forward.<locals>.<lambda> at test_check_names.py"
    names = [re.sub(r"py:\d+", "py", name) for name in report.regions]
    assert names == [
        name for layer in "01" for name in (layer, f"{layer}.first_half", f"outer_half of {layer}", f"{closure} of {layer}")
    ]
