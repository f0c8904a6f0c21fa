"""reprise check of models that are not deterministic: nothing right is accused, and faults are found nevertheless."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import impls
from impls import Implementation
from reprise.model_check import plain_runs
from reprise.model_check.checking import assert_equals_plain, check
from reprise.model_check.comparison import NOTHING, Comparison, Difference, TensorsCompared, widest
from reprise.model_check.plain_runs import ODD_PAIRS, PAIRS, PLAIN_RUNS, RUNS, UNDECIDED, PlainRuns, set_apart
from reprise.model_check.report import Result
from reprise.model_check.run import Setting, run
from tests.support.checked_models import Block, built

Noise = Callable[[random.Random], Block]


def in_values(own: random.Random) -> Block:
    return lambda _, x: x + 1e-3 * own.random()


def with_heavy_tails(own: random.Random) -> Block:
    return lambda _, x: x + 1e-6 / (own.random() + 1e-9)


def in_rare_flips(own: random.Random) -> Block:
    return lambda _, x: -x if own.random() < 0.3 else x


def in_a_buffer(own: random.Random) -> Block:
    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count.fill_(own.choice([1.0, 1.0, 2.0]))
        return x

    return after


def in_what_gets_a_gradient(own: random.Random) -> Block:
    return lambda _, x: x.detach() if own.random() < 0.4 else x


def in_how_many_numbers_are_drawn(own: random.Random) -> Block:
    def after(_: Any, x: torch.Tensor) -> torch.Tensor:
        for _ in range(own.randrange(3)):
            torch.rand(1)
        return x

    return after


NOISES: list[Noise] = [
    in_values,
    with_heavy_tails,
    in_rare_flips,
    in_a_buffer,
    in_what_gets_a_gradient,
    in_how_many_numbers_are_drawn,
]


class Noisy(nn.Module):
    """Does what it was given, and has a buffer for it."""

    def __init__(self, after: Block) -> None:
        super().__init__()
        self.after = after
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self, x)


def noisy(noise: Noise, seed: int) -> Callable[[], Any]:
    """A ``build`` with noise outside of regions, so that checkpointing is right; no seed of the check reaches it."""
    after = noise(random.Random(seed))

    def made() -> Any:
        model: Any
        model, x = built()()
        model.first = nn.Sequential(model.first, Noisy(after))
        return model, x

    return made


@pytest.mark.parametrize("noise", NOISES)
def test_no_right_implementation_is_accused(noise: Noise) -> None:
    for seed in range(12):
        setting = Setting(noisy(noise, seed), steps=1)
        plain, checkpoint = PlainRuns.begun(setting, lambda _: None), impls.get("nested").checkpoint
        assert plain.judge(checkpoint, run(setting, checkpoint)).verdict in ("agrees", UNDECIDED)


def halving(function: Any, *args: Any) -> Any:
    """A checkpoint with a fault: gradients of what goes through it are halved."""
    result = function(*args)
    result.register_hook(lambda gradient: gradient / 2)
    return result


def judged(build: Callable[[], Any], checkpoint: Callable[..., Any] = halving) -> Result:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)
    return check(build, impl=one, steps=1).results[0]


def test_a_fault_larger_than_the_noise_is_found() -> None:
    result = judged(noisy(in_values, 1))
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert "first.0.weight" in {one.name for one in result.comparison.gradients.differing}


def test_a_fault_that_the_noise_does_not_reach_is_named_alone() -> None:
    def made() -> Any:
        model, x = built(lambda self, x: self.get_submodule("extra")(x), lambda: nn.BatchNorm1d(8))()
        return model, lambda one: one(x).sum() * own.random()

    own = random.Random(2)
    report = check(made, impl="nested", steps=1)
    (result,) = report.results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert result.comparison.gradients.agrees
    assert result.first_run is not None
    assert len(result.first_run.gradients.differing) == result.first_run.gradients.total == 12
    assert "diverges  0/12 equal  3/6 equal" in str(report)
    assert "the table counts what differs no more than plain's runs do, too" in str(report)
    statistics = {"running_mean", "running_var", "num_batches_tracked"}
    assert {one.name for one in result.comparison.buffers.differing} == {f"layers.1.extra.{name}" for name in statistics}


def wrong_in(share: float) -> Callable[..., Any]:
    """A checkpoint with a fault in this share of its runs of three regions, the first of them included."""
    own, calls = random.Random(5), itertools.count()
    is_wrong = [True]

    def checkpoint(function: Any, *args: Any) -> Any:
        if (number := next(calls)) and number % 3 == 0:
            is_wrong[:] = [own.random() < share]
        return halving(function, *args) if is_wrong[0] else function(*args)

    return checkpoint


def test_an_implementation_that_is_wrong_now_and_then_diverges() -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=wrong_in(0.5))
    report = check(built(), impl=one, steps=1)
    (result,) = report.results
    told = re.fullmatch(r"(\d+) of its (\d+) runs differ from plain, whose (\d+) runs are equal", result.sometimes)
    assert (result.verdict, report.passes) == ("diverges", False)
    assert told is not None
    differing, runs, plain = map(int, told.groups())
    assert ODD_PAIRS < differing < runs
    assert runs - 1 - RUNS == plain - 2 - PLAIN_RUNS
    assert f"  the implementation itself is not deterministic: {result.sometimes}" in str(report).splitlines()


def test_one_run_that_differs_is_no_divergence_and_no_agreement() -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=wrong_in(0))
    report = check(built(), impl=one, steps=1)
    (result,) = report.results
    runs, plain = 1 + RUNS + PAIRS, 2 + PLAIN_RUNS + PAIRS
    assert result.verdict == UNDECIDED
    assert result.undecided == f"1 of its {runs} runs differ from plain, whose {plain} runs are equal: that may be chance"
    assert (report.passes, report.agrees) == (False, False)
    with pytest.raises(AssertionError, match="whether it agrees cannot be told"):
        assert_equals_plain(built(), impl=dataclasses.replace(one, checkpoint=wrong_in(0)), steps=1)


@pytest.mark.parametrize("seed", range(4))
def test_a_model_that_differs_now_and_then_is_not_taken_for_the_implementation(seed: int) -> None:
    own, models = random.Random(seed), itertools.count()
    is_odd = [False]

    def made() -> Any:
        model, x = built()()
        number = next(models)
        is_odd[:] = [number == 2 or (number > 12 and own.random() < 0.3)]  # 2: the implementation's first run
        model.first.register_forward_hook(lambda _, __, result: result * 2 if is_odd[0] else result)
        return model, x

    report = check(made, impl="nested", steps=1)
    assert report.results[0].verdict == UNDECIDED
    assert not report.spread.agrees
    assert report.passes


@pytest.mark.parametrize("at", range(9, 17))
def test_a_model_that_drifts_from_run_to_run_is_not_taken_for_an_implementation(at: int) -> None:
    """From one run on, whichever it is, the model computes something else.

    The one that diverges at first takes more runs, so that the drift meets the other, which does nothing.
    """
    models = itertools.count()

    def made() -> Any:
        model, x = built()()
        if next(models) >= at:
            model.first.register_forward_hook(lambda _, __, result: result * 2)
        return model, x

    setting = Setting(made, steps=1)
    plain, nothing = PlainRuns.begun(setting, lambda _: None), impls.get("plain").checkpoint
    plain.judge(halving, run(setting, halving))
    assert plain.judge(nothing, run(setting, nothing)).verdict in ("agrees", UNDECIDED)


def test_what_cannot_be_told_says_so_and_names_the_operator() -> None:
    report = str(check(noisy(in_values, 3), impl="nested", steps=1))
    assert f"not deterministic: {2 + PLAIN_RUNS} plain runs differ" in report
    assert "two plain runs first differ outside of regions:" in report
    assert "aten.add.Tensor is called with" in report
    assert "nested: whether it agrees cannot be told: no run differs from plain's by more than 4 times what" in report


def test_the_assertion_lets_pass_what_cannot_be_told_and_not_a_fault() -> None:
    assert_equals_plain(noisy(in_values, 4), impl="nested", steps=1)
    report = check(noisy(in_values, 4), impl="nested", steps=1)
    assert (report.passes, report.agrees) == (True, False)
    own = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=halving)
    with pytest.raises(AssertionError, match="own diverges"):
        assert_equals_plain(noisy(in_values, 4), impl=own, steps=1)


def test_a_model_whose_plain_runs_are_equal_takes_more_runs_only_where_it_differs() -> None:
    steps: list[int] = []

    def counted() -> Any:
        model, x = built()()
        model.register_forward_pre_hook(lambda *_: steps.append(1))
        return model, x

    judged(counted, lambda function, *args: function(*args))
    agreeing = len(steps)
    steps.clear()
    judged(counted)
    assert len(steps) == agreeing + PLAIN_RUNS + RUNS


def test_the_page_says_how_rare_a_false_accusation_is() -> None:
    page = (Path(__file__).parents[3] / "docs" / "checking-your-model.md").read_text(encoding="utf-8")
    assert 1 / math.comb(PLAIN_RUNS + RUNS, RUNS) + 2**-ODD_PAIRS <= 1 / 330
    assert "at most once in 330 comparisons" in page
    assert f"plain runs {PLAIN_RUNS} more times and the implementation {RUNS} more times" in page
    assert f"up to {PAIRS} pairs" in page
    assert f"alone in {ODD_PAIRS} pairs" in page


def test_a_choice_that_cannot_be_told_does_not_agree_and_takes_a_comparison_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    comparisons: list[int] = []

    def counted(*runs: Any) -> Any:
        comparisons.append(1)
        return set_apart(*runs)

    monkeypatch.setattr(plain_runs, "set_apart", counted)
    report = check(noisy(in_values, 3), impl="nested", steps=1, budget="200%")
    (result,) = report.results
    assert result.choice is not None
    assert (result.verdict, result.choice.verdict) == (UNDECIDED, UNDECIDED)
    assert (json.loads(report.as_json())["results"][0]["choice"]["agrees"], report.passes) == (False, True)
    assert "whether steps with these regions checkpointed are plain's cannot be told" in str(report)
    page = (Path(__file__).parents[3] / "docs" / "checking-your-model.md").read_text(encoding="utf-8")
    assert len(comparisons) == 2
    assert "A check makes one comparison for each implementation, and with `--budget` another for each" in page


PLAIN: list[dict[tuple[str, str], float]] = [{}] * PLAIN_RUNS
HERE = ("gradients", "weight")


def test_what_is_apart_in_every_run_is_set_apart() -> None:
    assert set_apart(PLAIN, [{HERE: 1.0}] * RUNS) == {HERE}
    assert set_apart([{HERE: 1.0}] * PLAIN_RUNS, [{HERE: 4.1}] * RUNS) == {HERE}
    assert set_apart(PLAIN, [{HERE: float("inf")}] * RUNS) == {HERE}


def test_what_is_as_far_off_in_one_plain_run_is_not() -> None:
    assert not set_apart([{HERE: 1.0}, *PLAIN[1:]], [{HERE: 1.0}] * RUNS)
    assert not set_apart(PLAIN, [{HERE: 1.0}] * (RUNS - 1) + [{}])
    assert not set_apart([{HERE: float("inf")}, *PLAIN[1:]], [{HERE: float("inf")}] * RUNS)


@given(st.data())
def test_where_many_tensors_flip_one_that_happens_to_fit_is_no_fault(data: st.DataObject) -> None:
    """The accusation is the only choice of runs that is set apart in so many tensors: as many others fit, as here by turns."""
    rows = data.draw(st.permutations(range(PLAIN_RUNS + RUNS)))
    flipped = [{("gradients", str(first)): 1.0 for first in rows if (row - first) % len(rows) < RUNS} for row in rows]
    assert not set_apart(flipped[:PLAIN_RUNS], flipped[PLAIN_RUNS:])


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_widest_of_several_differences_is_the_one_that_is_no_number(order: tuple[int, int]) -> None:
    parts = [TensorsCompared(1, (Difference("w", None, absolute),)) for absolute in (math.nan, 1e-7)]
    found = [Comparison(NOTHING, parts[number], NOTHING, (), (), ()) for number in order]
    assert widest(found).distances == {("gradients", "w"): math.inf}


def test_a_divergence_in_some_runs_alone_is_not_put_down_to_plain() -> None:
    """The gradient of a weight differs in every run, and that of its bias in the first two."""
    calls = itertools.count()
    layers: list[nn.Linear] = []

    def build() -> Any:
        model, x = built()()
        layers[:] = [model.first]
        return model, x

    def checkpointed(function: Any, *args: Any) -> Any:
        call = next(calls)
        if call % 3 == 0:  # of three regions
            layers[0].bias.register_hook(lambda gradient: gradient * (2.0 if call < 6 else 1.0))
            layers[0].weight.register_hook(lambda gradient: gradient * 1.5)
        return function(*args)

    report = check(
        build,
        impl=Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpointed),
        steps=1,
    )
    (result,) = report.results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert {one.name for one in result.comparison.gradients.differing} == {"first.weight"}
    assert "the table counts what differs in some of its runs alone, too" in str(report)
