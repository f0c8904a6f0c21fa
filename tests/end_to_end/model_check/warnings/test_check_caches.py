"""Warnings of reprise check of what a region writes and its recomputation finds or writes again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from reprise.model_check.checking import check
from reprise.model_check.report import Result
from tests.support.checked_models import Block, Model, built, built_counting


def warned(result: Result) -> dict[str, list[str]]:
    """Places without their lines, by kind of warning."""
    return {one.kind: [place.partition(" (")[0] for place in one.places] for one in result.warnings}


def memoized(self: Any, x: torch.Tensor) -> torch.Tensor:
    if not self.kept:
        self.kept.append(x.sin().exp())
    return x * self.kept[0]


def appended(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(x.detach())
    return x * torch.stack(self.kept).sum(0)


class Cache:
    """Keys that are put behind those that are there, as in a decoder's cache."""

    keys: torch.Tensor | None = None


def concatenated(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.cache = vars(self).get("cache", Cache())
    keys = [x.detach()] if self.cache.keys is None else [self.cache.keys, x.detach()]
    self.cache.keys = torch.cat(keys)
    return x * self.cache.keys.sum()


CACHES = [(memoized, "layers.1.kept[0]"), (appended, "layers.1.kept"), (concatenated, "layers.1.cache.keys")]


@pytest.mark.parametrize(("after", "place"), CACHES)
def test_a_cache_that_the_recomputation_fills_or_finds_filled_is_warned_of(after: Block, place: str) -> None:
    (result,) = check(built(after), impl="torch-nonreentrant", steps=1).results
    warned = {one.kind: one.places for one in result.warnings}
    assert result.verdict != "agrees"
    assert [one.partition(" (")[0] for one in warned["cache"]] == [place]
    assert warned.keys() == {"cache"}


def test_what_a_region_stores_alike_in_both_runs_is_no_cache() -> None:
    def stored(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept[:] = [x.detach()]
        self.last = x.detach()
        return x.sin()

    for result in check(built(stored), impl=["torch-reentrant", "nested"], steps=1).results:
        assert warned(result) == {}


BOTH = ["torch-nonreentrant", "nested"]


def scaled_by_the_memo(self: Any, x: torch.Tensor) -> torch.Tensor:
    if "scale" not in self.memo:
        self.memo["scale"] = self.linear.weight.exp()
    return x @ self.memo["scale"]


def built_with_a_memo() -> tuple[nn.Module, Callable[[Model], torch.Tensor]]:
    """The second layer keeps a dict between calls, which is emptied before each step."""
    model, x = built(scaled_by_the_memo)()

    def loss(model: Model) -> torch.Tensor:
        vars(model.layers[1])["memo"] = {}
        return model(x).square().mean()

    return model, loss


@pytest.mark.parametrize("impl", BOTH)
def test_what_forward_left_in_a_dict_is_warned_of_where_a_recomputation_ends_before_it_has_read_it(impl: str) -> None:
    (result,) = check(built_with_a_memo, impl=impl, steps=1).results
    assert result.verdict == "refuses"
    assert warned(result) == {"cache": ["layers.1.memo['scale']"]}


def test_what_forward_left_is_warned_of_where_a_recomputation_that_ends_early_reads_it() -> None:
    def doubled(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.last = vars(self).get("last", x.detach().exp())
        return x * self.last

    (result,) = check(built(doubled), impl="torch-nonreentrant", steps=1).results
    assert warned(result) == {"cache": ["layers.1.last"]}


def test_what_forward_left_is_not_warned_of_where_a_recomputation_ends_early_and_does_not_read_it() -> None:
    def noted(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.sin()
        self.last = x.detach() + 1
        return x

    for result in check(built(noted), impl=BOTH, steps=1).results:
        assert (result.verdict, warned(result)) == ("agrees", {})


@pytest.mark.parametrize("impl", BOTH)
def test_a_tensor_that_a_region_changes_in_place_is_no_cache(impl: str) -> None:
    (result,) = check(built_counting, impl=impl, steps=1).results
    assert result.verdict != "agrees"
    assert warned(result) == {"changed in place": ["layers.1.calls"]}


def remembering(self: Any, x: torch.Tensor) -> torch.Tensor:
    """Adds what it was given in the call before, as a recurrent model does across segments."""
    memory, self.memory = vars(self).get("memory", torch.zeros(8)), x.detach()
    return x + memory


@pytest.mark.parametrize("impl", [*BOTH, "torch-reentrant"])
def test_a_state_that_is_read_and_then_written_anew_is_warned_of(impl: str) -> None:
    (result,) = check(built(remembering), impl=impl, steps=1).results
    assert result.verdict != "agrees"
    assert warned(result) == {"cache": ["layers.1.memory"]}


def test_what_forward_left_of_its_input_is_not_taken_for_a_state_where_the_input_is_read() -> None:
    def noted(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        self.last = x.detach()
        return y

    for result in check(built(noted), impl=[*BOTH, "torch-reentrant"], steps=1).results:
        assert (result.verdict, warned(result)) == ("agrees", {})


def test_a_buffer_that_forward_replaces_is_warned_of_as_a_buffer_alone() -> None:
    def averaged(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.count = 0.9 * self.count + 0.1 * x.detach().mean()
        return x

    (result,) = check(built(averaged), impl="torch-reentrant", steps=1).results
    assert result.verdict == "diverges"
    assert warned(result) == {"buffers": ["layers.1"]}


def copied(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.memory.copy_(x.detach())
    return x + self.memory


def drawn(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x + self.memory.normal_() + self.memory.cos()


def read_first(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x + self.memory
    self.memory.copy_(x.detach())
    return y


def copied_in_part(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.memory[:2].copy_(x.detach()[:2])
    y = x + self.memory
    self.memory[2:].add_(1)
    return y


def with_memory(after: Block) -> Callable[[], tuple[Model, torch.Tensor]]:
    """A ``build`` whose second layer has a tensor that is no buffer, as large as its input."""

    def build() -> tuple[Model, torch.Tensor]:
        model, x = built(after)()
        model.layers[1].memory = torch.zeros(4, 8)
        return model, x

    return build


@pytest.mark.parametrize("after", [copied, drawn])
def test_what_each_run_writes_before_it_reads_it_is_not_warned_of(after: Block) -> None:
    for result in check(with_memory(after), impl=[*BOTH, "torch-reentrant"], steps=1).results:
        assert (result.verdict, warned(result)) == ("agrees", {})


@pytest.mark.parametrize("after", [read_first, copied_in_part])
def test_what_a_run_reads_before_it_has_written_all_of_it_is_warned_of(after: Block) -> None:
    (result,) = check(with_memory(after), impl="torch-nonreentrant-full", steps=1).results
    assert result.verdict == "diverges"
    assert warned(result) == {"changed in place": ["layers.1.memory"]}


def test_both_closures_of_one_function_are_looked_at() -> None:
    def factory(shift: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: x + shift

    def shifted(self: Any, x: torch.Tensor) -> torch.Tensor:
        for one in self.shifts:
            x = one(x).sin()
        return x

    def build(changed: int) -> Any:
        shifts = [torch.ones(8), torch.ones(8)]
        model, x = built(shifted)()
        vars(model.layers[1])["shifts"] = [*map(factory, shifts)]

        def loss(model: Model) -> torch.Tensor:
            found = model(x).square().mean()
            shifts[changed].mul_(2)
            return found

        return model, loss

    name = "closure variable shift of test_both_closures_of_one_function_are_looked_at.<locals>.factory.<locals>.<lambda>"
    for changed, path in enumerate([name, f"{name} (2)"]):
        (result,) = check(functools.partial(build, changed), impl="torch-reentrant", steps=1).results
        ((told,),) = ([place.rpartition(" (")[0] for place in one.places] for one in result.warnings)
        assert told == path
