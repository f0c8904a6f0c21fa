"""reprise check --explain: steps, plain runs and recomputations that are ended, or that lack an operator at their end."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check.checking import check
from reprise.model_check.explanations import recording
from reprise.model_check.explanations.explain import ENDED_IN, SAME_AS_FORWARD, SAME_ONCE
from tests.support import checked_models
from tests.support.checked_models import built, explained, line_of

HERE = re.escape(str(Path(checked_models.__file__)))  # which calls the regions
NOISE = random.Random(5)  # which no seed of the check reaches


def generated(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand(x.shape, generator=self.generator)


def noisy_unless_recorded(_: Any, x: torch.Tensor) -> torch.Tensor:
    if _get_current_dispatch_mode_stack():
        raise KeyError("not under a mode")
    return x * NOISE.random()


def test_plain_runs_that_fail_as_they_are_recorded_are_not_called_the_same() -> None:
    (told,) = check(built(noisy_unless_recorded), impl="nested", steps=1).spread_explanation.lines
    line = noisy_unless_recorded.__code__.co_firstlineno + 2
    assert told == (
        "where plain runs first differ cannot be told: 8 of 8 that were recorded failed, and were the same until then: "
        "the model fails without checkpointing, in forward of step 1 while it is measured "
        f"at {__file__}:{line}: KeyError: 'not under a mode'"
    )


def test_an_error_that_ends_one_plain_run_and_not_another_is_named() -> None:
    turns = itertools.count()

    def fails_at_times(_: Any, x: torch.Tensor) -> torch.Tensor:
        if any(isinstance(one, recording.Recording) for one in _get_current_dispatch_mode_stack()) and next(turns) % 2:
            raise KeyError("at times")
        return x * NOISE.random()

    report = check(built(fails_at_times), impl="nested", steps=1)
    found = report.spread_explanation
    assert found.lines[0] == "two plain runs first differ in region layers.1:"
    assert "aten.mul.Tensor runs in one run alone" in found.lines[1]
    assert found.ended_by.endswith("KeyError: 'at times'")
    assert f"\n  an error ended one of them: {found.ended_by}\n" in str(report)


def replaced() -> Any:
    """A model whose loss puts another tensor in the place of one that a region reads, before backward."""
    model: Any
    model, x = built(lambda self, y: y * self.kept[0])()
    model.layers[1].kept.append(torch.ones(8))

    def loss(model: Any) -> torch.Tensor:
        value = model(x).square().mean()
        model.layers[1].kept[0] = torch.full((8,), 2.0)
        return value

    return model, loss


def test_where_an_implementation_ends_a_recomputation_is_named_though_the_operator_never_ran() -> None:
    result = explained(replaced, impl="nested")
    place = f"{__file__}:{line_of(__file__, 'model, x = built(lambda self, y: y * self.kept[0])()')}"
    assert result.verdict == "refuses"
    assert re.fullmatch(
        r"operator \d+, in module layers\.1: aten\.mul\.Tensor in forward, where the recomputation was ended",
        result.explanation.lines[2],
    )
    assert result.explanation.lines[3:5] == (f"  in forward at {place}", f"  again at {place}")
    assert not any("what it did in forward" in line for line in result.explanation.lines)
    (warned,) = result.warnings
    assert (warned.kind, warned.places[0].partition(" (")[0]) == ("outside tensors", "layers.1.kept[0]")


class Shortened(nn.Module):
    """Its last operator runs in forward alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.turns = nn.Linear(8, 8), itertools.count()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.linear(x).tanh()
        return x.exp() if next(self.turns) == 0 else x


@pytest.mark.parametrize("impl", ["torch-reentrant", "torch-nonreentrant", "nested"])
def test_an_operator_that_the_recomputation_lacks_at_its_end_is_named(impl: str) -> None:
    def made() -> Any:
        model, x = built()()
        model.layers[1] = Shortened()
        return model, x

    lines = explained(made, impl=impl).explanation.lines
    assert re.fullmatch(rf"region layers\.1 \({HERE}:\d+\), recomputation 1:", lines[1])
    assert re.fullmatch(r"operator \d+, in module layers\.1: aten\.exp\.default runs in forward alone", lines[2])
    assert lines[3] == f"  at {__file__}:{line_of(__file__, 'return x.exp() if next(self.turns) == 0 else x')}"


def test_a_parameter_that_is_cast_in_one_run_alone_is_told_as_such() -> None:
    """The parameter itself is the same: autocast is on in forward alone."""

    def cast_at_first(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=len(self.kept) == 1):
            return self.extra(x).float()

    lines = explained(built(cast_at_first, lambda: nn.Linear(8, 8)), impl="torch-reentrant").explanation.lines
    told = r"aten\.\w+\.default reads parameter layers\.1\.extra\.\w+ in torch\.bfloat16 in forward, in torch\.float32 again"
    assert re.fullmatch(rf"operator \d+, in module layers\.1\.extra: {told}", lines[2])


class Adding(nn.Linear):
    """Its last operator saves nothing, so a recomputation may be stopped before it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).exp() + 1


def doubling(function: Any, *args: Any) -> Any:
    value = checkpoint(function, *args, use_reentrant=False)
    value.register_hook(lambda gradient: gradient * 2)
    return value


def test_a_recomputation_that_was_stopped_lacks_nothing() -> None:
    def made() -> Any:
        model, x = built()()
        model.layers = nn.ModuleList(Adding(8, 8) for _ in range(2))
        return model, x

    own = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=doubling)
    (result,) = check(made, impl=own, explain=True, steps=1).results
    assert result.verdict == "diverges"
    assert result.explanation.lines[1] == f"{SAME_AS_FORWARD}{ENDED_IN}"
    assert result.explanation.lines[2].startswith("  aten.add.Tensor in region layers.1 (")


class Scaling(nn.Module):
    """Its regions end by reading a tensor that is replaced between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.scale = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)), torch.ones(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(lambda y, layer=layer: layer(y) * self.scale, x, use_reentrant=False)
            self.scale = self.scale * 0.5
        return x


def test_the_operator_in_which_a_recomputation_was_ended_is_not_said_to_be_as_in_forward() -> None:
    early, full = check(
        lambda: (Scaling(), torch.ones(1, 8)), impl=["torch-nonreentrant", "torch-nonreentrant-full"], explain=True, steps=1
    ).results
    assert early.explanation.lines[1] == f"{SAME_AS_FORWARD}{ENDED_IN}"
    assert early.explanation.lines[2].startswith("  aten.mul.Tensor in region Scaling.forward.<locals>.<lambda>")
    assert {one.kind for one in early.warnings} == {one.kind for one in full.warnings} == {"outside tensors"}
    assert "aten.mul.Tensor reads another value of its tensor 1" in full.explanation.lines[2]


def test_a_line_of_a_region_of_pytorchs_code_alone_is_that_of_its_call() -> None:
    def loss(model: nn.Module) -> torch.Tensor:
        value = model(torch.ones(4, 8)).square().sum()
        model.eval()
        return value

    def made() -> Any:
        region = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 8))
        return nn.Sequential(nn.Linear(8, 8), region), loss

    (result,) = check(made, impl="torch-nonreentrant", regions="1", explain=True, steps=1).results
    place = f"{__file__}:{line_of(__file__, 'value = model(torch.ones(4, 8)).square().sum()')}"
    assert result.verdict == "refuses"
    assert result.explanation.lines[1] == f"region 1 ({place}), recomputation 1:"
    assert result.explanation.lines[3:5] == (f"  in forward at {place}", f"  again at {place}")
    (warned,) = result.warnings
    assert warned.kind == "training flags"
    assert f"1.1 ({__file__}:{line_of(__file__, 'model.eval()')})" in warned.places


def test_an_error_of_the_recording_is_told_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Any:
        raise KeyError("our own")

    monkeypatch.setattr(recording, "_storage", breaks)
    (told,) = explained(built(generated)).explanation.lines
    assert told.startswith(f"where it parts cannot be told: an error of reprise itself while measuring, at {__file__}:")


def test_an_error_of_the_recomputation_is_explained_and_told_in_few_lines() -> None:
    def more_is_saved(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x)
        return x.sin() if len(self.kept) == 1 else x[:1].sin()

    report = check(built(more_is_saved), impl="torch-nonreentrant", explain=True)
    (result,) = report.results
    assert (result.verdict, result.error.partition(":")[0]) == ("refuses", "CheckpointError")
    assert "recomputation 1" in result.explanation.lines[1]
    told = str(report).splitlines()
    verdict = next(place for place, line in enumerate(told) if line.startswith("torch-nonreentrant refuses"))
    assert "smallest set" in "".join(told[verdict : verdict + 7])


def third_call_on(self: Any) -> bool:
    """Whether the layer has run in forward and again before, as in the first step; plain's two steps run it twice."""
    self.kept.append(torch.empty(0))
    return len(self.kept) > 2


def other_values_in_the_second_step(self: Any, x: torch.Tensor) -> torch.Tensor:
    return (x * len(self.kept)).sin() if third_call_on(self) else x.sin()


def fewer_operators_in_the_second_step(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.cos().sin() if third_call_on(self) and len(self.kept) == 3 else x.sin()


LATER = [
    (other_values_in_the_second_step, "diverges", "aten.mul.Tensor is called with 3 in forward, with 4 again"),
    (fewer_operators_in_the_second_step, "refuses", "aten.cos.default in forward, aten.sin.default again"),
]


@pytest.mark.parametrize(("after", "verdict", "told"), LATER)
def test_what_begins_in_the_second_step_is_looked_for_there(after: Any, verdict: str, told: str) -> None:
    """Nothing differs in the first one, so to name that would deny that a region's values differ."""
    (result,) = check(built(after), impl="torch-nonreentrant", explain=True).results
    assert result.verdict == verdict
    lines = result.explanation.lines
    assert lines[0].startswith("smallest set of regions that shows it: layers.1 (")
    assert lines[1] == "in step 2:"
    assert lines[3] == f"operator 3, in module layers.1: {told}"


def test_of_steps_that_are_not_recorded_nothing_is_denied() -> None:
    """Three are recorded at most, and what begins in the fourth may be in a region's values."""

    def other_values_from_the_fourth_step_on(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(torch.empty(0))
        return (x * len(self.kept)).sin() if len(self.kept) > 6 else x.sin()

    (result,) = check(built(other_values_from_the_fourth_step_on), impl="torch-nonreentrant", steps=4, explain=True).results
    assert result.verdict == "diverges"
    assert result.explanation.lines[1:] == ("in step 3:", SAME_ONCE)
