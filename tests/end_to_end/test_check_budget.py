"""reprise check --budget: which regions it chooses, and whether what it says of them is so."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check.budgets.choice import OverBudget, parse_budget
from reprise.model_check.budgets.integer_program import fastest, least
from reprise.model_check.budgets.memory_model import Moment, predicted_peak
from reprise.model_check.checking import check
from reprise.model_check.command import main
from reprise.model_check.report import Report

HERE = "tests.end_to_end.test_check_budget"


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int, *more: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(16), nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16), nn.Dropout(0.1), *more
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class Model(nn.Module):
    """Blocks of several widths, each a region by way of ``call``."""

    def __init__(self, blocks: list[nn.Module], call: Callable[..., Any]) -> None:
        super().__init__()
        self.first, self.layers, self.call = nn.Linear(16, 16), nn.ModuleList(blocks), call

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.call(layer, x)
        return x


def plainly(layer: nn.Module, x: torch.Tensor) -> Any:
    return layer(x)


def checkpointed(layer: nn.Module, x: torch.Tensor) -> Any:
    return checkpoint(layer, x, use_reentrant=False)


def build(call: Callable[..., Any] = checkpointed) -> Any:
    return Model([Block(width) for width in (16, 64, 32, 96, 16, 48)], call), torch.randn(32, 16)


def build_with_batch_norm() -> Any:
    return Model([Block(32, nn.BatchNorm1d(16)) for _ in range(4)], checkpointed), torch.randn(32, 16)


def choice(report: Report) -> Any:
    (result,) = report.results
    assert result.choice is not None
    return result.choice


@pytest.mark.parametrize("budget", ["100%", "80%", "60%"])
@pytest.mark.parametrize("impl", ["torch-nonreentrant", "torch-reentrant", "nested"])
def test_the_executed_peak_is_within_the_budget_and_as_predicted(impl: str, budget: str) -> None:
    report = check(build, impl=impl, budget=budget, steps=1)
    chosen, plain = choice(report), report.plain
    assert plain is not None
    assert chosen.executed <= chosen.budget == parse_budget(budget, plain.peak_bytes)
    assert chosen.predicted == pytest.approx(chosen.executed, rel=0.05)
    assert chosen.flops <= chosen.flops_of_all
    assert bool(chosen.globs) == (budget != "100%")


def test_pasted_globs_have_the_executed_peak() -> None:
    chosen = choice(check(build, impl="nested", budget="70%", steps=1))
    (pasted,) = check(lambda: build(plainly), impl="nested", regions=chosen.globs, steps=1).results
    assert pasted.costs is not None
    assert pasted.costs.peak_bytes == chosen.executed
    assert pasted.verdict == "agrees"


def test_a_budget_that_nothing_keeps_is_refused_with_the_least() -> None:
    (result,) = check(build, impl="nested", steps=1).results
    assert result.costs is not None
    with pytest.raises(OverBudget, match=f"the least that was found for nested is {result.costs.peak_bytes:,}, executed with"):
        check(build, impl="nested", budget="1%", steps=1)


def test_a_module_that_is_called_twice_is_chosen_once() -> None:
    def shared() -> Any:
        block = Block(64)
        return Model([block, block, block, Block(16)], checkpointed), torch.randn(32, 16)

    report = check(shared, impl="nested", budget="70%", steps=1)
    assert [one.name for one in report.region_costs] == ["layers.0", "layers.3"]
    assert choice(report).globs == ("layers.0",)


def test_a_choice_that_changes_the_step_is_told_and_fails_the_command(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main([f"{HERE}:build_with_batch_norm", "--impl", "nested", "--budget", "70%", "--json", str(path)]) == 1
    assert json.loads(path.read_text())["results"][0]["choice"]["agrees"] is False


@pytest.mark.parametrize("given", ["x", "-1", "60 percent", "", True])
def test_what_is_no_budget_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"budget is .*accepted are bytes"):
        check(build, budget=given)


def test_a_budget_has_units() -> None:
    assert [parse_budget(given, 200) for given in (7, "7", "2KiB", "1.5 MiB", "60%")] == [7, 7, 2048, 3 * 2**19, 120]


def test_without_scipy_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(ValueError, match="budget needs the package scipy"):
        check(build, budget="60%")


def moments(groups: int) -> st.SearchStrategy[list[Moment]]:
    some = st.frozensets(st.integers(0, groups - 1), min_size=1)
    freed: Any = st.tuples(st.tuples(st.just("all"), some), st.integers(-50, -1))
    kept: Any = st.tuples(st.tuples(st.just("any"), some), st.integers(1, 20))
    terms = st.lists(st.one_of(freed, kept), max_size=6).map(dict)
    return st.lists(st.builds(Moment, plain=st.integers(300, 600), terms=terms), min_size=1, max_size=5)


@given(moments(4), st.lists(st.integers(1, 9), min_size=4, max_size=4), st.integers(0, 600))
def test_the_integer_program_finds_what_trying_all_finds(one: list[Moment], seconds: list[int], budget: int) -> None:
    every = [frozenset(some) for size in range(5) for some in itertools.combinations(range(4), size)]
    fitting = [chosen for chosen in every if predicted_peak(one, chosen) <= budget]
    found = fastest(one, seconds, budget)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting
        assert sum(seconds[group] for group in found) == min(sum(seconds[group] for group in some) for some in fitting)
    assert predicted_peak(one, least(one, 4)) == min(predicted_peak(one, chosen) for chosen in every)
