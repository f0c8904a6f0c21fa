"""reprise check: verdicts, figures, warnings and explanations on small models of a user's."""

from __future__ import annotations

import dataclasses
import json
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint
from torch import nn
from torch.utils.checkpoint import checkpoint as bound_early

from reprise.model_check.checking import assert_equals_plain, check
from reprise.model_check.comparison import compare_tensors
from reprise.model_check.report import Report
from tests.support.checked_models import Block, built, early_partial

HERE = "tests.end_to_end.model_check.test_check"


def build() -> Any:
    return built(lambda _, x: torch.dropout(x, 0.3, True))()


def build_with_batch_norm() -> Any:
    return built(lambda self, x: self.get_submodule("extra")(x), lambda: nn.BatchNorm1d(8))()


def through_module(function: Any, x: torch.Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint(function, x, use_reentrant=True)


def through_closure(function: Any, x: torch.Tensor, call: Any = bound_early) -> Any:
    return call(function, x, use_reentrant=True)


def sequentially(function: Any, x: torch.Tensor) -> Any:
    return torch.utils.checkpoint.checkpoint_sequential([function, torch.sin], 2, x, use_reentrant=False)


def kinds(report: Report) -> set[str]:
    return {warned.kind for result in report.results for warned in result.warnings}


@pytest.mark.parametrize("call", [early_partial, through_module, through_closure, sequentially])
def test_regions_are_redirected_however_checkpoint_was_bound(call: Callable[..., Any]) -> None:
    seen = []

    def checkpoint(function: Any, *args: Any) -> Any:
        seen.append(args)
        return function(*args)

    from impls import Implementation

    one = Implementation("seen", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)
    report = check(built(call=call), impl=one, steps=1)
    assert (report.results[0].calls, report.results[0].recomputations) == (3, 0)
    assert report.regions[0] in ("layers.0", "checkpoint_sequential.<locals>.run_function.<locals>.forward")
    assert seen


def test_a_right_model_agrees_with_nothing_to_warn_of() -> None:
    report = check(build, impl=["torch-nonreentrant", "torch-reentrant", "nested"])
    assert [one.verdict for one in report.results] == ["agrees"] * 3
    assert [(one.calls, one.recomputations) for one in report.results] == [(3, 3)] * 3
    assert report.spread.agrees
    assert kinds(report) == set()


def test_bytes_kept_fall_and_flops_rise() -> None:
    report = check(build, impl="nested")
    costs, plain = report.results[0].costs, report.plain
    assert costs is not None
    assert plain is not None
    assert costs.kept_bytes < plain.kept_bytes <= plain.peak_bytes
    assert costs.flops - plain.flops == 3 * 2 * 4 * 8 * 8  # of three layers, again


def test_statistics_of_batch_norm_are_named() -> None:
    (result,) = check(build_with_batch_norm, impl="torch-nonreentrant").results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert result.comparison.gradients.agrees
    assert {one.name for one in result.comparison.buffers.differing} >= {"layers.1.extra.running_mean"}
    assert [warned.places for warned in result.warnings] == [("layers.1.extra",)]


def flipped(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = torch.dropout(x, 0.3, self.training)
    self.eval()
    return x


def hooked(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.linear.register_forward_hook(lambda *_: None)
    return x.sin()


DRAWN = [
    ("Python's random numbers", lambda _, x: x * random.random()),
    ("numpy's random numbers", lambda _, x: x * np.random.rand()),
    ("training flags", flipped),
    ("hooks", hooked),
]


@pytest.mark.parametrize(("kind", "after"), DRAWN)
def test_what_does_not_bear_recomputation_is_warned_of(kind: str, after: Block) -> None:
    report = check(built(after), impl="torch-nonreentrant")
    assert kinds(report) == {kind}
    assert report.results[0].warnings[0].places[0].startswith("layers.1 (" if kind != "training flags" else "layers.1")


SCALE = torch.ones(())


def scaled_by_global(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def changes_after_the_layers(after: Block, changed: Callable[[], torch.Tensor]) -> Callable[[], Any]:
    def made() -> Any:
        model, x = built(after)()
        changed().fill_(1)
        model.last.register_forward_hook(lambda *_: [changed().data.fill_(3)].clear())
        return model, x

    return made


def test_a_global_tensor_that_changes_before_backward_is_warned_of() -> None:
    (result,) = check(changes_after_the_layers(scaled_by_global, lambda: SCALE), impl="torch-nonreentrant", steps=1).results
    assert result.verdict == "diverges"
    assert [(one.kind, one.places[0].partition(" (")[0]) for one in result.warnings] == [("outside tensors", "global SCALE")]


def test_a_closure_tensor_that_changes_before_backward_is_warned_of() -> None:
    scale = torch.ones(())
    build = changes_after_the_layers(lambda _, x: x * scale, lambda: scale)
    (result,) = check(build, impl="nested", steps=1).results
    (warned,) = result.warnings
    assert warned.kind == "outside tensors"
    assert warned.places[0].startswith("closure variable scale of ")


def build_frozen() -> Any:
    model, x = build()
    model.first.requires_grad_(False)
    model.last.requires_grad_(False)
    return model, x


def build_frozen_input() -> Any:
    model, x = build()
    model.first.requires_grad_(False)
    return model, x


def test_an_error_of_the_engine_is_a_refusal_and_its_cause_is_warned_of() -> None:
    command = [sys.executable, "-m", "reprise", "check", f"{HERE}:build_frozen", "--impl", "torch-reentrant", "--json", "-"]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False
    )  # here, the suite's device stands before the engine
    (result,) = json.loads(ran.stdout)["results"]
    assert (ran.returncode, result["verdict"]) == (1, "refuses")
    assert [warned["kind"] for warned in result["warnings"]] == ["inputs"]


def test_a_region_without_gradients_at_its_inputs_is_warned_of() -> None:
    report = check(build_frozen_input, impl=["torch-reentrant", "nested"])
    reentrant, nested = report.results
    assert (reentrant.verdict, nested.verdict) == ("diverges", "agrees")
    assert [warned.kind for warned in reentrant.warnings] == ["inputs"]
    assert reentrant.comparison is not None
    assert "layers.0.linear.weight" in reentrant.comparison.gradients.missing


@pytest.mark.parametrize(("factor", "is_rounding"), [(1 + 2**-22, True), (1.001, False)])
def test_a_difference_in_rounding_alone_is_told_and_stays_a_divergence(factor: float, is_rounding: bool) -> None:
    from impls import Implementation

    def checkpoint(function: Any, *args: Any) -> Any:
        result = function(*args)
        result.register_hook(lambda gradient: gradient * factor)
        return result

    one = Implementation("scaling", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=checkpoint)
    (result,) = check(built(), impl=one, steps=1).results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert result.comparison.is_rounding is is_rounding


def test_rounding_is_beside_the_largest_gradient_for_those_that_are_zero_but_for_rounding() -> None:
    plain = {"weight": torch.ones(2), "bias": torch.tensor([1e-8, -1e-8])}
    noise, wrong = {**plain, "bias": torch.tensor([-3e-8, 1e-8])}, {**plain, "bias": torch.tensor([1e-4, 0.0])}
    assert compare_tensors(plain, noise).is_rounding
    assert not compare_tensors(plain, wrong).is_rounding


def test_an_error_of_the_users_own_is_a_crash() -> None:
    def fails(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        if len(self.kept) > 1:
            raise ValueError("mine")
        return x.sin()

    (result,) = check(built(fails), impl="torch-nonreentrant", steps=1).results
    assert (result.verdict, result.error) == ("crashes", "ValueError: mine")


def test_modules_named_by_a_glob_are_regions() -> None:
    report = check(built(call=lambda layer, x: layer(x)), regions="layers.*", impl="nested")
    assert report.regions == ("layers.0", "layers.1", "layers.2")
    assert report.results[0].recomputations == 3


class Shared(nn.Module):
    """One layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.Sigmoid())
        self.second = self.first

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(self.first(x))


@pytest.mark.parametrize("globs", ["second", ["first", "second"], "*", "second.0"])
def test_a_shared_module_is_named_by_each_of_its_names(globs: Any) -> None:
    report = check(lambda: (Shared(), torch.randn(3, 2)), regions=globs, impl="nested", steps=1)
    assert report.regions == (("first.0",) if globs == "second.0" else ("first",)) * 2
    assert (report.uncalled, report.results[0].recomputations) == ({}, 2)


def test_a_model_without_modules_has_none_to_name() -> None:
    with pytest.raises(ValueError, match="'x' matches no module; the model has no modules inside it"):
        check(lambda: (nn.Linear(1, 1), torch.ones(1)), regions="x")


def chain(size: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(1, size))


def computed_loss(model: nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.ones(2, 1)).sum()
    return loss


class Inferring(nn.Sequential):
    """Computes without gradients."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1))

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self[0](x)


@torch.inference_mode()
def inferring(model: nn.Module) -> torch.Tensor:
    return torch.as_tensor(model(torch.ones(1)))


ONE = chain()
WRONG = [
    (lambda: 1, "build() returned an object of type int"),
    (lambda: (chain(), 3), "build() returned (model, an object of type int)"),
    (lambda: (chain(), computed_loss(chain())), "build() returned (model, a scalar with a graph, which seems to be a loss"),
    (lambda: (chain(), lambda _: 3), "loss(model) returned an object of type int"),
    (lambda: (chain(2), lambda model: model(torch.ones(1))), "of shape (2,)"),
    (lambda: (ONE, torch.ones(1)), "build() returned the same model again"),
    (lambda: (chain(), inferring), "loss(model) was computed under torch.inf"),
    (lambda: (Inferring(), torch.ones(1)), "model(example_inputs) was computed under torch.inference_mode"),
]


@pytest.mark.parametrize(("made", "message"), WRONG)
def test_what_build_may_return_is_shown(made: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError) as caught:
        check(made, regions="0")
    assert message in str(caught.value)
    assert "accepted are (model, loss)" in str(caught.value)


def test_a_check_under_inference_mode_is_refused_as_such() -> None:
    with torch.inference_mode(), pytest.raises(TypeError, match=r"torch\.inference_mode is on where the check is called"):
        check(lambda: (chain(), torch.ones(1)), regions="0")


@dataclasses.dataclass
class Output:
    """What some models return: tensors, here in a list, and what is none."""

    hidden: list[torch.Tensor]
    name: str = "output"
    cache: torch.Tensor | None = None


class Returning(nn.Sequential):
    """Returns a dataclass."""

    def forward(self, x: torch.Tensor) -> Output:
        return Output([super().forward(x)])


def test_a_model_may_return_a_dataclass() -> None:
    (result,) = check(lambda: (Returning(nn.Linear(1, 1)), torch.ones(1)), impl="nested", regions="0", steps=1).results
    assert (result.verdict, result.calls) == ("agrees", 1)


def test_an_error_of_a_later_build_is_not_the_implementations() -> None:
    left = iter([build(), build()])
    with pytest.raises(ValueError, match=r"build failed at .*test_check\.py:\d+: StopIteration"):
        check(lambda: next(left), impl="nested")


def test_an_error_of_the_model_is_told_with_its_line() -> None:
    def fails(_: Any, x: torch.Tensor) -> torch.Tensor:
        raise KeyError("mine")

    line = fails.__code__.co_firstlineno + 1
    with pytest.raises(ValueError, match=rf"without checkpointing, in forward of step 1 at .*test_check\.py:{line}: KeyError"):
        check(built(fails), impl="nested")


def test_flops_of_recomputations_are_never_negative() -> None:
    """Reentrant implementations leave out backward where no input requires grad: less work than plain's, nothing again."""
    report = check(build_frozen_input, impl=["torch-reentrant", "nested"], steps=1)
    assert [one.costs.again_flops for one in report.results if one.costs] == [0, 3 * 2 * 4 * 8 * 8]
    assert "-" not in str(report).partition("FLOPs again")[2].partition("\n\n")[0].replace("torch-reentrant", "")


def test_without_a_region_the_largest_modules_are_named() -> None:
    with pytest.raises(ValueError, match=r"no region found.*--regions 'layers.\*'.*layers \(216 parameters\)"):
        check(built(call=lambda layer, x: layer(x)))


def test_the_assertion_shows_the_report() -> None:
    assert_equals_plain(build, impl="nested")
    with pytest.raises(AssertionError, match=r"nested diverges\n.*buffers: 3 of 6 differ"):
        assert_equals_plain(build_with_batch_norm, impl="nested")


def test_an_implementation_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="impl is 'graph', which is no checkpoint"):
        check(build, impl="graph")
