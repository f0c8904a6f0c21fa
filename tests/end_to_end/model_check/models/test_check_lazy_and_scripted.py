"""reprise check: lazy modules, and modules of TorchScript, have figures, or it is said why they have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check import metering
from reprise.model_check.checking import check

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Calling(nn.Module):
    """A layer as a region between two others."""

    def __init__(self, layer: nn.Module, first: nn.Module | None = None, **options: Any) -> None:
        super().__init__()
        self.first, self.layer, self.last = first or nn.Linear(8, 8), layer, nn.Linear(8, 1)
        self.options = options

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(checkpoint(self.layer, self.first(x), use_reentrant=False, **self.options))


def calling(layer: Callable[[], nn.Module], first: Callable[[], nn.Module] = lambda: nn.Linear(8, 8), **options: Any) -> Any:
    return lambda: (Calling(layer(), first(), **options), torch.randn(4, 8))


def linear() -> nn.Module:
    return nn.Linear(8, 8)


def lazy() -> nn.Module:
    return nn.LazyLinear(8)


def scripted() -> nn.Module:
    one: nn.Module = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
    return one


def traced() -> nn.Module:
    one: nn.Module = torch.jit.trace(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(4, 8))
    return one


@pytest.mark.parametrize(("layer", "first"), [(lazy, linear), (linear, lazy), (lazy, lazy)])
def test_figures_of_a_lazy_module_are_those_of_one_that_is_not(layer: Any, first: Any) -> None:
    expected, seen = (check(one, impl="nested", steps=1) for one in (calling(linear, linear), calling(layer, first)))
    assert (seen.agrees, seen.not_measured, seen.results[0].not_measured) == (True, "", "")
    assert seen.plain == expected.plain
    assert seen.results[0].costs == expected.results[0].costs


def test_a_budget_and_an_explanation_of_a_lazy_model() -> None:
    report = check(calling(lazy, lazy), impl="nested", budget="100%", explain=True)
    (result,) = report.results
    assert (report.passes, result.choice is not None and result.choice.predicted) == (
        True,
        report.plain and report.plain.peak_bytes,
    )


def test_a_parameter_of_a_lazy_module_is_named_by_an_explanation() -> None:
    def changing() -> Any:
        model, x = calling(lambda: nn.Sequential(lazy(), nn.Sigmoid()))()
        model.last.register_forward_hook(lambda *_: [model.layer[0].weight.data.mul_(2)].clear())
        return model, x

    (result,) = check(changing, impl="torch-nonreentrant", steps=1, explain=True).results
    assert any("reads another value of parameter layer.0.weight" in line for line in result.explanation.lines)


@pytest.mark.parametrize("layer", [scripted, traced])
def test_a_module_of_torchscript_has_figures(layer: Any) -> None:
    report = check(calling(layer), impl="nested", steps=1)
    (result,) = report.results
    assert (report.agrees, result.not_measured, result.warnings) == (True, "", ())
    assert report.plain is not None
    assert result.costs is not None
    assert result.costs.again_flops > 0


@pytest.mark.parametrize("layer", [scripted, traced])
def test_an_error_of_torchscript_in_place_of_an_early_stop_is_told(layer: Any) -> None:
    (result,) = check(calling(layer), impl="torch-nonreentrant", steps=1).results
    assert (result.verdict, [one.kind for one in result.warnings]) == ("crashes", ["TorchScript"])
    assert check(calling(layer, early_stop=False), impl="torch-nonreentrant", steps=1).agrees  # the remedy


@pytest.mark.parametrize("message", ["", "RuntimeError:", "The TorchScript interpreter failed.\nRuntimeError: no"])
def test_other_errors_are_not_taken_for_torchscripts(message: str) -> None:
    assert not metering._is_of_torchscript(RuntimeError(message))


class Whole(nn.Module):
    """Two layers, to be traced or scripted as one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.layer(x))


@pytest.mark.parametrize("make", [torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(4, 8))])
def test_a_module_that_torchscript_calls_is_told_as_no_region(make: Callable[[nn.Module], Any]) -> None:
    with pytest.raises(ValueError, match=r"^no module that matches 'layer' was called .* TorchScript runs layer within"):
        check(lambda: (make(Whole()), torch.randn(4, 8)), impl="nested", regions="layer")
