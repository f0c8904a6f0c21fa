"""reprise check --budget: which regions it chooses, and whether what it says of them is so."""

from __future__ import annotations

import inspect
import itertools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils.checkpoint
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check import regions
from reprise.model_check.budgets import choice as budgets
from reprise.model_check.budgets import memory_trace
from reprise.model_check.budgets.choice import parse_budget
from reprise.model_check.budgets.integer_program import cheapest, least
from reprise.model_check.budgets.memory_model import Moment, predicted_peak
from reprise.model_check.budgets.memory_trace import MemoryTrace, trace
from reprise.model_check.checking import check
from reprise.model_check.command import main
from reprise.model_check.errors import BuildFails, MeteringFails
from reprise.model_check.process_state import random_streams
from reprise.model_check.report import Report
from reprise.model_check.run import Setting

TARGET: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)
HERE = "tests.end_to_end.model_check.test_check_budget"


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


def checkpointed(layer: Callable[..., Any], x: torch.Tensor) -> Any:
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
    assert f"    peak {chosen.executed:,} bytes in the first step, executed; predicted" in str(report)


def test_pasted_globs_have_the_executed_peak() -> None:
    chosen = choice(check(build, impl="nested", budget="70%", steps=1))
    (pasted,) = check(lambda: build(plainly), impl="nested", regions=chosen.globs, steps=1).results
    assert pasted.costs is not None
    assert pasted.costs.peak_bytes == chosen.executed
    assert pasted.verdict == "agrees"


class Keyed(nn.Module):
    """Modules under keys that have the characters of globs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({key: Block(width) for key, width in (("b*", 16), ("bx", 64), ("b[x]", 16), ("b?", 16))})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x


def test_globs_of_names_with_the_characters_of_globs_match_these_alone() -> None:
    def made() -> Any:
        return Keyed(), torch.randn(32, 16)

    (result,) = check(made, impl="nested", regions="layers.*", budget="80%", steps=1).results
    assert result.choice
    chosen = result.choice.globs
    assert any("[" in glob for glob in chosen)
    assert len(check(made, impl="nested", regions=chosen, steps=1).regions) == len(chosen)


def test_each_run_for_a_budget_is_told_with_its_number_and_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    for name in ("run", "measure", "trace"):
        of_budget = getattr(budgets, name)

        def noted(*args: Any, of_budget: Any = of_budget, **options: Any) -> Any:
            told.append("a run begins")
            return of_budget(*args, **options)

        monkeypatch.setattr(budgets, name, noted)
    check(build, impl="nested", budget="80%", steps=1, progress=told.append)
    told = told[told.index("plain, for the budget: run 1 of 6") :]
    said, runs = told[::2], told[1::2]
    assert {*runs} == {"a run begins"}
    assert len(said) == len(runs)
    assert said[:6] == [f"plain, for the budget: run {number} of 6" for number in range(1, 7)]
    assert said[-11:] == [f"nested, within the budget: run {number} of 11" for number in range(1, 12)]
    assert all(re.fullmatch(r"nested, \d of 6 regions, choice \d of 5 at most", one) for one in said[6:-11])


def test_a_budget_that_nothing_keeps_is_refused_with_the_least() -> None:
    (result,) = check(build, impl="nested", steps=1).results
    assert result.costs is not None
    report = check(build, impl="nested", budget="1%", steps=1)
    told = f"the smallest peak of the choices that were executed for nested (1) is {result.costs.peak_bytes:,}, with "
    assert told in report.results[0].over_budget
    assert f"  {report.results[0].over_budget}" in str(report).splitlines()
    assert "and another may take less" in report.results[0].over_budget
    assert (report.agrees, report.passes, report.results[0].verdict) == (False, False, "agrees")


def test_the_smallest_peak_is_that_of_all_choices_that_were_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction of the least is wrong here: it takes more than a choice that was executed before."""
    choose: dict[str, Any] = {"cheapest": iter([frozenset({0, 1, 2}), None]), "least": iter([frozenset({0})])}
    for name, choices in choose.items():
        monkeypatch.setattr(f"reprise.model_check.budgets.choice.{name}", lambda *_, choices=choices: next(choices))
    (result,) = check(build, impl="nested", budget="1", steps=1).results
    told = r".* executed for nested \(2\) is [\d,]+, with layers\.0, layers\.1, layers\.2 checkpointed, and .*"
    assert re.fullmatch(told, result.over_budget)


@pytest.mark.parametrize(
    ("name", "impl", "status"),
    [
        ("build", ["nested"], 2),
        ("build", ["nested", "plain"], 2),
        ("build_with_batch_norm", ["nested"], 1),
        ("build", ["nested", f"{HERE}:raising_when_left_out"], 1),
    ],
)
def test_a_budget_that_is_not_kept_hides_no_verdict(name: str, impl: list[str], status: int, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main([f"{HERE}:{name}", "--impl", *impl, "--steps", "1", "--budget", "1", "--json", str(path)]) == status
    told = json.loads(path.read_text())
    assert told["results"][0]["verdict"] == ("agrees" if name == "build" else "diverges")
    assert told["results"][0]["over_budget"].startswith("budget is 1, 1 bytes; the smallest peak")
    assert not told["passes"]


class Tiny(nn.Module):
    """Its buffers are more than all that a step makes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]), nn.BatchNorm1d(4)
        self.register_buffer("large", torch.zeros(4096))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = checkpointed(layer, x)
        return self.norm(x)


@pytest.mark.parametrize("impl", ["torch-nonreentrant", "nested"])
def test_a_budget_that_plain_keeps_leaves_all_regions_out_and_says_so(impl: str) -> None:
    def tiny() -> Any:
        return Tiny(), torch.randn(2, 4)

    plain = check(tiny, impl=impl, steps=1).plain
    assert plain is not None
    assert plain.storages_peak_bytes < 1000
    for budget in ("100%", plain.peak_bytes):
        report = check(tiny, impl=impl, budget=budget, steps=1)
        chosen = choice(report)
        assert (chosen.globs, chosen.unnamed) == ((), ())
        assert chosen.budget == chosen.predicted == chosen.executed == plain.storages_peak_bytes
        assert f"within {chosen.budget:,} bytes: plain fits, so checkpoint none of 2 regions" in str(report)
        assert "--regions" not in str(report)


def test_a_budget_that_plain_keeps_takes_no_region_though_its_trace_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = check(build, impl="nested", steps=1).plain
    assert plain is not None

    def larger(setting: Setting) -> MemoryTrace:
        traced = trace(setting)
        traced.alive[traced.alive.index(max(traced.alive))] += 4096
        return traced

    monkeypatch.setattr("reprise.model_check.budgets.choice.trace", larger)
    chosen = choice(check(build, impl="nested", budget=plain.peak_bytes, steps=1))
    assert (chosen.globs, chosen.executed) == ((), plain.peak_bytes)


def raising_when_left_out(function: Any, *args: Any) -> Any:
    """A checkpoint with a fault that shows where not all regions go through it."""
    if regions._active[-1].only is not None:
        raise KeyError("own")
    return function(*args)


def raising_in_backward(function: Any, *args: Any) -> Any:
    result = function(*args)
    if regions._active[-1].only is not None:
        result.register_hook(lambda _: dict[str, Any]()["own"])
    return result


@pytest.mark.parametrize("fault", [raising_when_left_out, raising_in_backward])
def test_an_error_of_an_implementation_within_the_budget_is_told_with_its_line(fault: Callable[..., Any]) -> None:
    own = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=fault)
    before = random_streams(), TARGET.__code__, torch.is_grad_enabled()
    report = check(build, impl=[own, "nested"], budget="70%", steps=1)
    one, other = report.results
    assert (one.verdict, one.choice, one.over_budget) == ("agrees", None, "")
    assert re.fullmatch(rf"crashes at {re.escape(__file__)}:\d+: KeyError: 'own'", one.budget_error)
    assert other.choice is not None
    assert other.choice.agrees
    assert not report.agrees
    assert f"own, with regions chosen for the budget, {one.budget_error}" in str(report)
    assert (random_streams(), TARGET.__code__, torch.is_grad_enabled()) == before


def test_an_error_of_an_implementation_within_the_budget_fails_the_command(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    command = [f"{HERE}:build", "--impl", f"{HERE}:raising_when_left_out", "--budget", "70%", "--json", str(path)]
    assert main(command) == 1
    assert "crashes at " in json.loads(path.read_text())["results"][0]["budget_error"]


class FailsWhenTraced(Model):
    """A model with an error that shows when its memory is traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if any(isinstance(one, MemoryTrace) for one in _get_current_dispatch_mode_stack()):
            raise KeyError("mine")
        return super().forward(x)


def build_that_fails_when_traced() -> Any:
    return FailsWhenTraced([Block(16), Block(32)], checkpointed), torch.randn(32, 16)


def test_an_error_of_the_model_while_a_budget_is_measured_is_told_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    before = random_streams(), TARGET.__code__, torch.is_grad_enabled()
    assert main([f"{HERE}:build_that_fails_when_traced", "--impl", "nested", "--budget", "70%"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    line = FailsWhenTraced.forward.__code__.co_firstlineno + 2
    assert told == (
        "reprise check: the model fails without checkpointing, in forward of step 1 while it is measured "
        f"at {__file__}:{line}: KeyError: 'mine'"
    )
    assert (random_streams(), TARGET.__code__, torch.is_grad_enabled()) == before


@pytest.mark.parametrize("part", ["storages", "_outermost"])
def test_an_error_of_the_trace_is_ours_and_not_the_models(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Any:
        raise KeyError("our own")

    monkeypatch.setattr(memory_trace, part, breaks)
    with pytest.raises(MeteringFails, match="an error of reprise itself while measuring, at "):
        trace(Setting(build))


def test_an_error_of_build_while_a_budget_is_measured_is_told_as_such() -> None:
    left = iter([build() for _ in range(7)])
    with pytest.raises(BuildFails, match=r"build failed at .*test_check_budget\.py:\d+: StopIteration"):
        check(lambda: next(left), impl="nested", budget="70%")


def test_a_module_that_is_called_twice_is_chosen_once() -> None:
    def shared() -> Any:
        block = Block(64)
        return Model([block, block, block, Block(16)], checkpointed), torch.randn(32, 16)

    report = check(shared, impl="nested", budget="70%", steps=1)
    assert [one.name for one in report.region_costs] == ["layers.0", "layers.3"]
    assert choice(report).globs == ("layers.0",)


class Parted(Block):
    """A block of which a method is the region: a glob that names the block would name more."""

    def part(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpointed(self.part, x)


def test_a_region_that_runs_a_method_is_named_after_it_and_has_no_glob() -> None:
    def made() -> Any:
        return Model([Parted(256), Parted(256)], plainly), torch.randn(32, 16)

    report = check(made, impl="nested", budget="85%", steps=1)
    assert report.regions == ("layers.0.part", "layers.1.part")
    assert not choice(report).globs
    assert {*choice(report).unnamed} <= {*report.regions}


def test_a_choice_that_changes_the_step_is_told_and_fails_the_command(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main([f"{HERE}:build_with_batch_norm", "--impl", "nested", "--budget", "70%", "--json", str(path)]) == 1
    assert json.loads(path.read_text())["results"][0]["choice"]["agrees"] is False


@pytest.mark.parametrize("given", ["x", "-1", "60 percent", "", True, "9" * 400, pytest.param(10**5000, id="5001 digits")])
def test_what_is_no_budget_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match=r"budget is .*(accepted are bytes|too large)"):
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
    found = cheapest(one, seconds, budget)
    assert (found is None) == (not fitting)
    if found is not None:
        assert found in fitting
        assert sum(seconds[group] for group in found) == min(sum(seconds[group] for group in some) for some in fitting)
    assert predicted_peak(one, least(one, 4)) == min(predicted_peak(one, chosen) for chosen in every)
