"""reprise check --explain: each kind of fault is found, and the operator, the region and the line are named."""

from __future__ import annotations

import ctypes
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
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check.checking import check
from reprise.model_check.explanations.explain import CHANGE_LATER
from reprise.model_check.explanations.explanation import NOTHING
from reprise.model_check.explanations.operator_difference import FILL, KEEP_STATE, PASS_IN, RESTORE, UNWRITTEN
from tests.support import checked_models
from tests.support.checked_models import Block, Model, built, explained, line_of

NOISE = random.Random(5)  # which no seed of the check reaches


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
    "a layer that is picked": (picked, "aten.addmm.default reads parameter layers.1.linear.bias in forward, "),
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
    "a cache": (cached, "aten.cat.default reads 1 tensor in forward, 2 again"),
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


def test_who_changed_an_input_of_a_region_in_place_is_named() -> None:
    lines = explained(build_changing).explanation.lines
    assert "aten.add.Tensor reads another value of argument 1 of the region" in lines[2]
    assert lines[5] == f"  changed in place by aten.mul_.Tensor at {__file__}:{line_of(__file__, 'given.mul_(2)')}"


def test_who_changed_an_input_in_place_is_named_where_the_implementation_refuses() -> None:
    result = explained(build_changing, impl="nested")
    assert result.verdict == "refuses"
    assert "region 'layers.1'" in result.error
    changed = f"  changed in place by aten.mul_.Tensor at {__file__}:{line_of(__file__, 'given.mul_(2)')}"
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
    place = f"{__file__}:{line_of(__file__, 'return built(lambda _, x: x * unsteady(x.detach()))()')}"
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


def alternated(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return x.sin() if self.calls % 2 else x.cos()


def shifted_by_calls(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return x + self.calls


def lengthened(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    for _ in range(self.calls):
        x = x.sin()
    return x


@pytest.mark.parametrize("after", [alternated, shifted_by_calls, lengthened])
def test_a_number_that_changes_is_told_what_to_do_about(after: Block) -> None:
    assert (
        "a number, a flag, a cache or another state that the region reads"
        in explained(built(after), "torch-nonreentrant-full").explanation.remedy
    )


class Unfilled(nn.Module):
    """Reads memory that it does not fill: of ``torch.empty``, with other values in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(8, dtype=torch.int32)
        ctypes.memset(memory.data_ptr(), 1 + next(COUNT) % 100, 32)  # as an allocator does that gives out what was freed
        return (x + memory.float()).sin().exp()


COUNT = itertools.count()


def test_memory_that_nothing_has_filled_is_told_of() -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(8, 8), Unfilled(), nn.Linear(8, 1)), torch.randn(4, 8)

    report = check(build, impl="torch-nonreentrant-full", regions="1", explain=True, steps=1)
    assert UNWRITTEN in "\n".join(report.spread_explanation.lines)
    assert report.spread_explanation.remedy == FILL


def without_its_masks(function: Any, x: torch.Tensor, **_: Any) -> Any:
    return checkpoint(function, x, use_reentrant=False, preserve_rng_state=False)


def test_random_numbers_that_are_not_restored_have_a_remedy() -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(8, 8), nn.Dropout(), nn.Linear(8, 1)), torch.randn(4, 8)

    own = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=without_its_masks)
    (result,) = check(build, impl=own, regions="1", explain=True, steps=1).results
    assert result.explanation.remedy == RESTORE


def from_outside(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * torch.tensor(NOISE.random())


def test_what_is_made_of_data_of_pythons_has_a_remedy() -> None:
    def build() -> Any:
        NOISE.seed(5)
        return built(from_outside)()

    (result,) = check(build, impl="torch-nonreentrant", explain=True, steps=1).results
    assert result.explanation.remedy == PASS_IN


def through_data(function: Any, x: torch.Tensor, **_: Any) -> Any:
    y = checkpoint(function, x, use_reentrant=False)
    x.data.mul_(2)
    return y


def test_what_was_changed_in_between_has_a_remedy() -> None:
    def build() -> Any:
        return nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 1)), torch.randn(4, 8)

    own = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=through_data)
    (result,) = check(build, impl=own, regions="1", explain=True, steps=1).results
    assert result.explanation.lines[-1].startswith("  changed in place by aten.mul_.Tensor at ")
    assert result.explanation.remedy == CHANGE_LATER


def test_a_recomputation_that_saves_more_than_forward_is_told_of() -> None:
    def more(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.runs = vars(self).get("runs", 0) + 1
        return x.sin() if self.runs > 1 else x

    def build() -> Any:
        linear = nn.Linear(8, 8)
        model = nn.Sequential(nn.Linear(8, 8), linear)
        linear.forward = lambda x: more(model, nn.functional.linear(x, linear.weight).exp())  # type: ignore[assignment]
        return model, torch.randn(4, 8)

    (result,) = check(build, impl="torch-nonreentrant-full", regions="1", explain=True, steps=1).results
    assert result.verdict == "refuses"
    assert any("forward has no more than" in line for line in result.explanation.lines)
    assert result.explanation.remedy == KEEP_STATE


@pytest.mark.parametrize("steps", [2, 3, 5])
def test_a_later_step_is_explained_however_many_there_are(steps: int) -> None:
    def warming_up(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.runs = vars(self).get("runs", 0) + 1
        return x.tanh() if self.runs <= 2 else x

    (result,) = check(built(warming_up), impl="torch-nonreentrant", explain=True, steps=steps).results
    assert "in step 2:" in result.explanation.lines
    assert any("aten.tanh.default in plain" in line for line in result.explanation.lines)
