"""reprise check: what is warned of was seen, what cannot be measured is said, and so is a glob that names no region."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check import metering
from reprise.model_check.checking import check
from reprise.model_check.report import Report
from tests.support.checked_models import Block, Model, built

IMPL = "torch-nonreentrant"


def warned(report: Report) -> dict[str, list[str]]:
    """The places that are warned of, by kind, without their lines."""
    return {one.kind: [place.partition(" (")[0] for place in one.places] for one in report.results[0].warnings}


def counting_in_backward(after: Block = lambda _, x: x, extra: Callable[[], nn.Module] | None = None) -> Any:
    """A model and inputs; a backward hook writes a buffer of the first layer."""
    model: Any
    model, x = built(after, extra)()

    def count(*_: Any) -> None:
        model.layers[0].count.add_(1)

    model.last.register_full_backward_hook(count)
    return model, x


def test_a_buffer_that_a_backward_hook_writes_is_not_updated_by_the_recomputation() -> None:
    report = check(counting_in_backward, impl=IMPL, steps=1)
    assert report.agrees
    assert warned(report) == {}


def test_a_buffer_that_the_recomputation_updates_is_warned_of_beside_it() -> None:
    def build() -> Any:
        return counting_in_backward(lambda self, x: self.get_submodule("extra")(x), lambda: nn.BatchNorm1d(8))

    assert warned(check(build, impl=IMPL, steps=1)) == {"buffers": ["layers.1.extra"]}


class Twice(nn.Module):
    """One layer, which is a region twice in a step, and does something with what it is passed."""

    kept: torch.Tensor | None = None

    def __init__(self, use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.use = nn.Linear(8, 8), use

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = checkpoint(self.use, self, self.layer(x), use_reentrant=False)
        return x


def storing(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept = x.detach()
    return x.sin().exp()


def storing_in_place(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept = torch.zeros(4, 8) if self.kept is None else self.kept
    self.kept.copy_(x.detach())
    return x.sin().exp()


def reading(self: Any, x: torch.Tensor) -> torch.Tensor:
    before = torch.ones(4, 8) if self.kept is None else self.kept
    self.kept = x.detach()
    return x * before.sum()


@pytest.mark.parametrize(("use", "kinds"), [(storing, set()), (storing_in_place, set()), (reading, {"outside tensors"})])
def test_what_a_module_stores_is_warned_of_if_its_recomputation_reads_it(use: Any, kinds: set[str]) -> None:
    report = check(lambda: (Twice(use), torch.randn(4, 8)), impl=IMPL, steps=1)
    assert report.results[0].verdict == ("diverges" if kinds else "agrees")
    assert {*warned(report)} >= kinds
    assert kinds or not warned(report)


def drawn_of_python(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def drawn_of_numpy(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * float(np.random.rand())


def hooked(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.linear.register_forward_hook(lambda *_: None)
    return x


def hooked_once(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x if self.linear._forward_hooks else hooked(self, x)


def replaying(function: Callable[..., Any], *args: Any) -> Any:
    """A checkpoint that puts back Python's and numpy's random numbers for the recomputation."""
    states = random.getstate(), np.random.get_state()
    runs = itertools.count()

    def replayed(*args: Any) -> Any:
        if next(runs) == 0:
            return function(*args)
        before = random.getstate(), np.random.get_state()
        random.setstate(states[0])
        np.random.set_state(states[1])
        try:
            return function(*args)
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])

    return checkpoint(replayed, *args, use_reentrant=False)


def recomputing_nothing(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


REPLAYED = [
    (drawn_of_python, replaying),
    (drawn_of_numpy, replaying),
    (drawn_of_python, recomputing_nothing),
    (drawn_of_numpy, recomputing_nothing),
    (hooked, recomputing_nothing),
]


@pytest.mark.parametrize(("after", "function"), REPLAYED)
def test_what_no_recomputation_does_otherwise_is_not_warned_of(after: Block, function: Callable[..., Any]) -> None:
    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)
    report = check(built(after), impl=one, steps=1)
    assert report.agrees
    assert warned(report) == {}


@pytest.mark.parametrize("after", [hooked, hooked_once])
@pytest.mark.parametrize("impl", ["torch-nonreentrant", "torch-reentrant", "nested"])
def test_hooks_that_a_recomputation_registers_or_finds_are_warned_of(impl: str, after: Block) -> None:
    assert warned(check(built(after), impl=impl, steps=1)) == {"hooks": ["layers.1"]}


@pytest.mark.parametrize("impl", ["torch-nonreentrant", "nested"])
def test_numbers_that_the_recomputation_alone_draws_are_warned_of(impl: str) -> None:
    def drawn_again(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * random.random() if torch._C._current_graph_task_id() != -1 else x * 1.0

    assert warned(check(built(drawn_again), impl=impl, steps=1)) == {"Python's random numbers": ["layers.1"]}


SPACE = SimpleNamespace(scale=torch.ones(()))
MODULE: Any = nn.Module()
MODULE.scale = torch.ones(())


def scaled_by_a_space(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * SPACE.scale


def scaled_by_a_module(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * MODULE.scale


def changing(after: Block, holder: Any) -> Any:
    """A model and inputs; the holder's tensor changes once the layers have run."""
    model, x = built(after)()
    holder.scale.fill_(1)
    model.last.register_forward_hook(lambda *_: [holder.scale.data.fill_(3)].clear())
    return model, x


HOLDERS = [(scaled_by_a_space, SPACE, "global SPACE.scale"), (scaled_by_a_module, MODULE, "global MODULE.scale")]


@pytest.mark.parametrize(("after", "holder", "place"), HOLDERS)
def test_a_tensor_of_a_global_object_that_changes_before_backward_is_warned_of(after: Block, holder: Any, place: str) -> None:
    report = check(lambda: changing(after, holder), impl=IMPL, steps=1)
    assert report.results[0].verdict == "diverges"
    assert warned(report) == {"outside tensors": [place]}


class ByPartial(nn.Module):
    """One layer; its region is a partial with two tensors, the first of which changes before backward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> Any:
        one, other = torch.ones(8), torch.ones(8)
        x = checkpoint(functools.partial(combined, one, other), self.layer(x), use_reentrant=False)
        one.data.fill_(3)
        return x


def combined(one: torch.Tensor, other: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return (x * one + other).sin()


def test_each_tensor_that_a_partial_holds_is_looked_at() -> None:
    report = check(lambda: (ByPartial(), torch.randn(4, 8)), impl=IMPL, steps=1)
    assert report.results[0].verdict == "diverges"
    assert warned(report) == {"outside tensors": ["combined(argument 0)"]}


class WithCache(nn.Module):
    """One layer, which is a region twice and is passed a dict; it adds to a tensor there, and calls ``after`` the regions."""

    def __init__(self, write: Callable[[Any, torch.Tensor], torch.Tensor], after: Callable[[Any], object]) -> None:
        super().__init__()
        self.layer, self.write, self.after = nn.Linear(8, 8), write, after

    def forward(self, x: torch.Tensor) -> Any:
        cache = {"keys": torch.ones(2, 8)}
        for _ in range(2):
            x = checkpoint(self.attend, x, cache, use_reentrant=False)
        self.after(cache)
        return x

    def attend(self, x: torch.Tensor, cache: dict[str, torch.Tensor]) -> torch.Tensor:
        keys = self.write(cache, self.layer(x))
        return torch.softmax(x @ keys.T, -1) @ keys


def extending(cache: Any, keys: torch.Tensor) -> torch.Tensor:
    cache["keys"] = torch.cat([cache["keys"], keys])
    return cache["keys"]


def only_reading(cache: Any, keys: torch.Tensor) -> torch.Tensor:
    return keys * cache["keys"].sum()


def test_a_cache_that_the_implementation_restores_is_not_warned_of() -> None:
    report = check(lambda: (WithCache(extending, lambda _: None), torch.randn(4, 8)), impl="nested", steps=1)
    assert report.agrees
    assert warned(report) == {}


def test_a_tensor_in_an_argument_is_not_called_one_that_is_not_passed() -> None:
    def build() -> Any:
        return WithCache(only_reading, lambda cache: cache.update(keys=torch.zeros(2, 8))), torch.randn(4, 8)

    report = check(build, impl=IMPL, steps=1)
    assert report.results[0].verdict == "diverges"
    assert warned(report) == {"outside tensors": ["WithCache.attend(argument 1)['keys']"]}
    told = "a tensor that a region reads, and that is not itself an argument, was changed between forward and recomputation: "
    assert f"warning: {told}" in str(report)


class Unused(Model):
    """A model with a module that no step calls."""

    def __init__(self) -> None:
        super().__init__(lambda _, x: x, call=lambda layer, x: layer(x))
        self.unused = nn.Sequential(nn.Linear(8, 8))


def test_a_glob_whose_modules_the_step_does_not_call_is_reported() -> None:
    report = check(lambda: (Unused(), torch.randn(4, 8)), regions=["layers.*", "unused*", "*.linear"], impl=IMPL, steps=1)
    assert report.regions == ("layers.0", "layers.1", "layers.2")
    assert report.uncalled == {"unused*": ("unused",)}
    assert "--regions 'unused*' matches modules that the step does not call, which are no regions: unused\n" in str(report)
    assert warned(report) == {}
    assert json.loads(report.as_json())["uncalled"] == {"unused*": ["unused"]}


def test_modules_inside_a_list_that_a_glob_names_are_reported_with_it() -> None:
    report = check(lambda: (Unused(), torch.randn(4, 8)), regions=["l*", "layers.*"], impl=IMPL, steps=1)
    assert report.regions == ("last",)
    assert report.uncalled == {"l*": ("layers",), "layers.*": ("layers.0", "layers.1", "layers.2")}


def breaks(*_: Any, **__: Any) -> Any:
    raise KeyError("our own")


@pytest.mark.parametrize("part", ["snapshot", "storages", "_counting_allocator"])
def test_an_error_of_the_meter_is_told_as_ours(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, part, breaks)
    report = check(built(), impl=IMPL, steps=1)
    (result,) = report.results
    assert (result.verdict, result.costs) == ("agrees", None)
    assert result.not_measured.startswith(f"an error of reprise itself while measuring, at {__file__}:")
    assert f"no figures, and no further warnings: {result.not_measured}" in str(report)
    assert (report.plain is None) is (report.not_measured != "")


class Nesting(nn.Module):
    """Calls its layer as a region, within a region."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer = nn.Linear(8, 8), nn.Linear(8, 8)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.layer, x.sin(), use_reentrant=False)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(self.inner, self.first(x), use_reentrant=False)


def test_a_region_whose_forward_runs_without_gradients_in_another_is_not_warned_of() -> None:
    (result,) = check(lambda: (Nesting(), torch.randn(4, 8)), impl="torch-reentrant", steps=1).results
    assert (result.verdict, result.calls, result.warnings) == ("agrees", 2, ())
