"""reprise check --budget: what is said of each region, and of all of them, is measured with these and no others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import impls
from impls import Implementation
from reprise.model_check.budgets import choice
from reprise.model_check.budgets.choice import Planner
from reprise.model_check.budgets.region_work import Work, costs_of, pooled
from reprise.model_check.checking import check
from reprise.model_check.metering import Observations, measure
from reprise.model_check.plain_runs import PlainRuns
from reprise.model_check.run import Setting


def checkpointed(layer: Callable[..., Any], x: torch.Tensor) -> Any:
    return checkpoint(layer, x, use_reentrant=False)


class Chain(nn.Module):
    """Layers of which each is a region."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpointed(layer, x)
        return x


def block(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 16))


def planner(build: Callable[[], Any]) -> Planner:
    setting = Setting(build, steps=1)
    return Planner.measured(setting, PlainRuns.begun(setting, lambda _: None), lambda _: None)


def build_nested() -> Any:
    return Chain(block(32), Chain(block(64), block(64)), block(32)), torch.randn(128, 16)


def test_all_regions_are_the_outermost_ones_in_flops_and_in_time() -> None:
    through = list[str]()

    def noting(function: Any, *args: Any) -> Any:
        through.append(function.__name__)
        return impls.find("nested").checkpoint(function, *args)

    one = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=noting)
    planner(build_nested).choose(one, "95%")
    assert {*through} == {"layers.0", "layers.1", "layers.2"}


def ending_with_what_it_saves() -> nn.Module:
    """A layer whose result it saves itself."""
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh())


def test_what_another_region_is_passed_or_the_loss_saves_is_not_freed_by_checkpointing() -> None:
    """The first layer's result is passed to the second, and that one's is saved by the loss, too."""

    def build() -> Any:
        model, x = Chain(ending_with_what_it_saves(), ending_with_what_it_saves()), torch.randn(128, 16)
        return model, lambda model: model(x).square().sum()

    assert [one.kept_bytes for one in planner(build).region_costs()] == [0, 0]


def test_what_a_region_keeps_is_what_its_checkpointing_frees_after_forward() -> None:
    def build() -> Any:
        return Chain(block(32), ending_with_what_it_saves(), block(64)), torch.randn(128, 16)

    one = planner(build)
    plain = measure(one.setting, None, Observations())[0].kept_bytes
    nested = impls.find("nested").checkpoint
    for place, costs in enumerate(one.region_costs()):
        kept, _ = measure(one.setting, nested, Observations(), only=frozenset({(place,)}))
        assert costs.kept_bytes == plain - kept.kept_bytes


class Graph(nn.Module):
    """Layers of a graph network: the adjacency is a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.BatchNorm1d(16)
        self.register_buffer("adjacency", torch.eye(8).to_sparse())

    def layer(self, layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.get_buffer("adjacency"), self.norm(layer(x)).tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(self.layer, layer, x, use_reentrant=False)
        return x


def test_a_sparse_buffer_has_no_storage_and_leaves_figures_warnings_and_a_budget() -> None:
    report = check(lambda: (Graph(), torch.randn(8, 16)), impl="nested", steps=1, budget="90%")
    (result,) = report.results
    assert report.plain is not None
    assert result.costs is not None
    assert result.costs.kept_bytes < report.plain.kept_bytes
    assert [one.kind for one in result.warnings] == ["buffers"]
    assert result.choice is not None


SMALL, LARGE, UNCOUNTED = Work(10, 100, 1), Work(20, 300, 1), Work(0, 200, 1)


@pytest.mark.parametrize(
    ("works", "rounds", "found"),
    [
        ([SMALL, LARGE], [[0.5, 0.51], [0.2, 0.2]], ("seconds", (0.5, 0.2))),
        ([SMALL, LARGE], [[5e-4, 5e-4], [2e-4, 2e-4]], ("FLOPs", (10, 20))),  # too short
        ([SMALL, LARGE], [[0.5, 0.5, 0.5], [0.6, 0.8, 0.9]], ("FLOPs", (10, 20))),  # within noise
        ([SMALL, UNCOUNTED], [[0.5, 0.5], [0.5, 0.5]], ("bytes", (100, 200))),
        ([SMALL, SMALL, LARGE], [[0.5, 0.51], [0.49, 0.5], [0.9, 0.9]], ("seconds", (0.49, 0.49, 0.9))),
        ([SMALL, SMALL], [[0.5, 0.5], [0.9, 0.9]], ("FLOPs", (10, 10))),  # the same work
        ([], [], ("FLOPs", ())),
    ],
)
def test_regions_cost_time_where_it_can_be_told_and_else_work(works: Any, rounds: Any, found: Any) -> None:
    assert costs_of(works, rounds) == found


def test_regions_of_the_same_work_have_the_least_time_of_all_of_them() -> None:
    assert pooled([SMALL, LARGE, SMALL], [[3, 2], [9, 8], [4, 1]]) == (1, 8, 1)


def build_alike() -> Any:
    return Chain(*(block(32) for _ in range(6))), torch.randn(128, 16)


def build_unlike() -> Any:
    return Chain(*(block(width) for width in (64, 16, 48, 32, 16, 64))), torch.randn(128, 16)


def timed(monkeypatch: pytest.MonkeyPatch, seconds: Callable[[int], float]) -> None:
    monkeypatch.setattr(choice, "_seconds_of_regions", lambda _: {(place,): seconds(place) for place in range(6)})


@pytest.mark.parametrize("build", [build_alike, build_unlike])
def test_where_times_are_noise_the_choice_is_the_same_in_each_run(
    build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = random.Random(4)
    timed(monkeypatch, lambda _: noise.uniform(1e-4, 9e-4))
    reports = [check(build, impl="nested", steps=1, budget="70%") for _ in range(4)]
    assert len({one.results[0].choice.globs for one in reports if one.results[0].choice}) == 1
    assert {one.chosen_by for one in reports} == {"FLOPs"}
    told = "their times are below a millisecond, or differ no more than from round to round"
    assert f"regions are chosen by FLOPs of forward: {told}" in str(reports[0]).splitlines()
    assert [one.flops > 0 < one.made_bytes for one in reports[0].region_costs] == [True] * 6


def test_where_times_can_be_told_apart_they_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    timed(monkeypatch, lambda place: 0.1 if place in (1, 2, 3) else 5.0)
    report = check(build_unlike, impl="nested", steps=1, budget="75%")
    (result,) = report.results
    assert result.choice is not None
    assert report.chosen_by == "seconds"
    assert {*result.choice.globs} <= {"layers.1", "layers.2", "layers.3", "layers.4"}  # the last does the work of the first
    assert "are chosen by" not in str(report)


def test_regions_whose_flops_nobody_counts_are_chosen_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> Any:
        layers = [nn.Sequential(nn.Tanh(), nn.Sigmoid(), nn.Tanh()) for _ in range(5)]
        return Chain(nn.Linear(16, 64), *layers), torch.randn(128, 16)

    timed(monkeypatch, lambda _: 1e-4)
    report = check(build, impl="nested", steps=1, budget="80%")
    assert report.chosen_by == "bytes"
    assert "regions are chosen by bytes of forward: " in str(report)
