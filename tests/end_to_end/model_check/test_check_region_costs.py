"""reprise check --budget: what is said of each region, and of all of them, is measured with these and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import impls
from impls import Implementation
from reprise.model_check.budgets.choice import Planner
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
