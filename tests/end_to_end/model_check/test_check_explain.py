"""reprise check --explain: each kind of fault is found, and the operator, the region and the line are named."""

from __future__ import annotations

import inspect
import itertools
import random
import re
from collections.abc import Callable
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
from reprise.model_check.explanations.explain import SAME_AGAIN
from reprise.model_check.explanations.explanation import NOTHING
from reprise.model_check.report import Result
from tests.support import checked_models
from tests.support.checked_models import Block, Model, built

NOISE = random.Random(5)  # which no seed of the check reaches


def explained(build: Callable[[], Any], impl: str = "torch-nonreentrant") -> Result:
    (result,) = check(build, impl=impl, explain=True, steps=1).results
    assert result.verdict != "agrees"
    return result


class Experts(nn.Module):
    """Two experts; each row goes to the one with the higher score."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, x: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        chosen = scores.topk(1, dim=1).indices.squeeze(1)
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            result = result.index_add(0, rows, expert(x[rows]))
        return result


def routed(self: Any, x: torch.Tensor) -> torch.Tensor:
    """The scores are tied but for noise of a stream of its own."""
    ties = torch.zeros(4, 2)
    return self.extra(x, ties + 1e-6 * torch.rand((4, 2), generator=self.generator))


def routed_by_turns(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.turn = not getattr(self, "turn", False)
    return self.extra(x, torch.tensor([[0.0, 1.0] if self.turn else [1.0, 0.0]]).expand(4, 2))


def picked(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.turn = not getattr(self, "turn", False)
    return (self.linear if self.turn else self.extra.experts[0])(x)


def dropped(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (torch.rand(x.shape, generator=self.generator) > 0.5)


def dropped_in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.empty_like(x).bernoulli_(0.5, generator=self.generator)


def dropped_after_dropout(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Dropout writes its mask into memory that nothing has written, which differs each time and is no fault."""
    return dropped(self, torch.nn.functional.dropout(x, 0.5, training=True))


def counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.count += 1
    return x * self.count.item()


def cached(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.detach())
    return x * torch.cat(self.kept).sum(0)


def shortened(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x)
    return x[len(self.kept) :].sin().sum() + x


def branched(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x)
    return x.sin() if len(self.kept) == 1 else x.cos()


FAULTS: dict[str, tuple[Block, str]] = {
    "routing of experts whose ties flip": (routed, "aten.rand.generator gives another value"),
    "routing of experts by turns": (routed_by_turns, "a tensor that is made of data of Python or numpy has other values"),
    "a layer that is picked": (picked, "aten.t.default reads parameter layers.1.linear.weight in forward, "),
    "dropout with a generator of its own": (
        dropped,
        "a torch.Generator that it is given, whose state a recomputation does not",
    ),
    "the same in place, by an operator without a generator in its name": (
        dropped_in_place,
        "a torch.Generator that it is given, whose state a recomputation does not",
    ),
    "the same after dropout": (dropped_after_dropout, "aten.rand.generator gives another value"),
    "a buffer changed in place": (counted, "reads another value of buffer layers.1.count"),
    "a cache": (cached, "aten.cat.default reads 1 tensors in forward, 2 again"),
    "a shape that depends on data": (shortened, "aten.slice.Tensor is called with 0, 1, "),
    "another branch": (branched, "aten.sin.default in forward, aten.cos.default again"),
}


HERE = re.escape(str(Path(checked_models.__file__)))  # which calls the regions
RUNS = "in forward", "again"


def lines_of(function: Callable[..., Any]) -> range:
    lines, first = inspect.getsourcelines(function)
    return range(first, first + len(lines))


@pytest.mark.parametrize("fault", FAULTS)
def test_the_operator_at_which_the_recomputation_parts_is_named(fault: str) -> None:
    after, operator = FAULTS[fault]
    lines = explained(built(after, Experts)).explanation.lines
    assert re.fullmatch(rf"smallest set of regions that shows it: layers\.1 \({HERE}:\d+\)", lines[0])
    assert re.fullmatch(rf"region layers\.1 \({HERE}:\d+\), recomputation 1:", lines[1])
    both = r"\.linear in forward, layers\.1\.extra\.experts\.0 again"
    assert re.match(rf"operator \d+, in module layers\.1(\.extra|{both})?: ", lines[2])
    assert operator in lines[2]
    (in_forward, again) = (
        re.fullmatch(rf"  {run} at {__file__}:(\d+)", line) for run, line in zip(RUNS, lines[3:5], strict=True)
    )
    assert in_forward
    assert again
    assert {int(in_forward[1]), int(again[1])} <= {*lines_of(after), *lines_of(dropped), *lines_of(Experts.forward)}


class Changing(Model):
    """A model that changes what it has passed to a region, once the region has run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.first(x).sin()
        x = self.call(self.layers[1], given + 0, [given])
        given.mul_(2)
        return self.last(x)


class Scaled(nn.Module):
    """Uses its second input without saving it, so that plain does not mind that it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, given: list[torch.Tensor]) -> torch.Tensor:
        return (self.linear(x) + given[0]).sin().exp()


def build_changing() -> Any:
    model = Changing(lambda _, x: x)
    model.layers[1] = Scaled()
    return model, torch.randn(4, 8)


def line_of(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)


def test_who_changed_an_input_of_a_region_in_place_is_named() -> None:
    lines = explained(build_changing).explanation.lines
    assert "aten.add.Tensor reads another value of argument 1 of the region" in lines[2]
    assert lines[5] == f"  changed in place by aten.mul_.Tensor at {__file__}:{line_of('given.mul_(2)')}"


def test_who_changed_an_input_in_place_is_named_where_the_implementation_refuses() -> None:
    result = explained(build_changing, impl="nested")
    assert result.verdict == "refuses"
    assert "region 'layers.1'" in result.error
    changed = f"  changed in place by aten.mul_.Tensor at {__file__}:{line_of('given.mul_(2)')}"
    assert changed in result.explanation.lines
    assert result.explanation.lines[1].startswith("argument 1 of region layers.1 (")


def test_an_input_that_the_region_itself_changes_is_named() -> None:
    def changes(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept[0].add_(1)
        return x * self.kept[0]

    def made() -> Any:
        model: Any
        model, x = built(changes)()
        model.layers[1].kept.append(torch.ones(8))
        return model, x

    lines = explained(made).explanation.lines
    assert lines[2].endswith("aten.add_.Tensor reads another value of its tensor 0")
    assert lines[5].startswith("  changed in place by aten.add_.Tensor at ")


@torch.library.custom_op("reprise_check::unsteady", mutates_args=())
def unsteady(x: torch.Tensor) -> torch.Tensor:
    return x + NOISE.random()


def test_an_operator_that_is_not_deterministic_is_named_in_its_region_and_between_plain_runs() -> None:
    report = check(built(lambda _, x: x * unsteady(x.detach())), impl="torch-nonreentrant", explain=True, steps=1)
    (result,) = report.results
    assert report.spread_explanation.lines[0] == "two plain runs first differ in region layers.1:"
    assert "reprise_check.unsteady.default gives another value for the same inputs" in report.spread_explanation.lines[1]
    assert (result.verdict, report.passes, result.explanation) == ("diverges", False, NOTHING)
    assert result.unlike_forward.lines[0].startswith("region layers.1 (")
    assert "reprise_check.unsteady.default gives another value for the same inputs" in result.unlike_forward.lines[1]
    told = "plain's runs differ from each other, but here a recomputation computes other values than its own forward"
    assert f"torch-nonreentrant diverges\n  {told}" in str(report)


def test_another_operator_in_a_recomputation_is_not_taken_for_other_values() -> None:
    """A table that forward fills is not filled again; plain's runs differ by noise around the regions."""

    def tabulated(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not self.kept:
            self.kept.append(torch.ones(8))
        return x * self.kept[0]

    def made() -> Any:
        model, x = built(tabulated)()
        return model, x + NOISE.random()

    (result,) = check(made, impl="torch-nonreentrant", steps=1).results
    assert (result.verdict, result.unlike_forward) == ("cannot be told", NOTHING)


def test_an_operator_that_is_not_deterministic_within_a_step_is_named_with_the_smallest_set_of_regions() -> None:
    def made() -> Any:
        NOISE.seed(5)
        return built(lambda _, x: x * unsteady(x.detach()))()

    lines = explained(made).explanation.lines
    assert re.fullmatch(rf"smallest set of regions that shows it: layers\.1 \({HERE}:\d+\)", lines[0])
    named = "reprise_check.unsteady.default gives another value for the same inputs"
    assert re.fullmatch(rf"operator \d+, in module layers\.1: {named}", lines[2])
    place = f"{__file__}:{line_of('return built(lambda _, x: x * unsteady(x.detach()))()')}"
    assert lines[3:5] == (f"  in forward at {place}", f"  again at {place}")


def test_the_smallest_set_may_have_two_regions() -> None:
    """The recomputation of one layer changes what that of another reads: neither alone goes wrong."""

    def made() -> Any:
        model: Any
        model, x = built()()
        model.written = set()

        def marks(name: str) -> Callable[..., torch.Tensor]:
            def after(_: Any, y: torch.Tensor) -> torch.Tensor:
                is_again = torch._C._current_graph_task_id() != -1
                model.written |= {name} if is_again else set()
                return y * 2 if is_again and model.written == {"one", "other"} else y

            return after

        model.layers[0].after, model.layers[2].after = marks("one"), marks("other")
        return model, x

    (line, *_) = explained(made).explanation.lines
    assert re.fullmatch(rf".*: layers\.0 \({HERE}:\d+\), layers\.2 \({HERE}:\d+\)", line)


def test_noise_outside_of_regions_is_named_there() -> None:
    def noisy() -> Any:
        model, x = built()()
        return model, lambda made: made(x).sum() * NOISE.random()

    report = check(noisy, impl="nested", steps=1)
    assert report.spread_explanation.lines[0] == "two plain runs first differ outside of regions:"
    assert "aten.mul.Tensor is called with " in report.spread_explanation.lines[1]


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
    place = f"{__file__}:{line_of('model, x = built(lambda self, y: y * self.kept[0])()')}"
    assert result.verdict == "refuses"
    assert re.fullmatch(
        r"operator \d+, in module layers\.1: aten\.mul\.Tensor in forward, ended there again", result.explanation.lines[2]
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
    assert lines[3] == f"  at {__file__}:{line_of('return x.exp() if next(self.turns) == 0 else x')}"


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
    assert result.explanation.lines[-1] == SAME_AGAIN


def test_a_line_of_a_region_of_pytorchs_code_alone_is_that_of_its_call() -> None:
    def loss(model: nn.Module) -> torch.Tensor:
        value = model(torch.ones(4, 8)).square().sum()
        model.eval()
        return value

    def made() -> Any:
        region = nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Tanh(), nn.Linear(8, 8))
        return nn.Sequential(nn.Linear(8, 8), region), loss

    (result,) = check(made, impl="torch-nonreentrant", regions="1", explain=True, steps=1).results
    place = f"{__file__}:{line_of('value = model(torch.ones(4, 8)).square().sum()')}"
    assert result.verdict == "refuses"
    assert result.explanation.lines[1] == f"region 1 ({place}), recomputation 1:"
    assert result.explanation.lines[3:5] == (f"  in forward at {place}", f"  again at {place}")
    (warned,) = result.warnings
    assert warned.kind == "training flags"
    assert f"1.1 ({__file__}:{line_of('model.eval()')})" in warned.places


def test_an_error_of_the_recording_is_told_as_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: Any) -> Any:
        raise KeyError("our own")

    monkeypatch.setattr(recording, "_storage", breaks)
    (told,) = explained(built(dropped)).explanation.lines
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
