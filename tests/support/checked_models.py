"""Small models for the tests of reprise check: three regions, the second of which does what a test has it do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as bound_early

from reprise.model_check.checking import check
from reprise.model_check.report import Result

early_partial = functools.partial(bound_early, use_reentrant=False)
Block = Callable[[Any, torch.Tensor], torch.Tensor]


class Layer(nn.Module):
    """A linear layer, and what a test has it do with its result."""

    def __init__(self, after: Block, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.after, self.extra = nn.Linear(8, 8), after, extra
        self.register_buffer("count", torch.zeros(()))
        self.generator = torch.Generator().manual_seed(3)
        self.kept: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self, self.linear(x)).sin().exp()


class Model(nn.Module):
    """Three layers behind an input layer, each a region by way of ``call``; the second is the one of the test."""

    def __init__(self, after: Block, extra: nn.Module | None = None, call: Callable[..., Any] = early_partial) -> None:
        super().__init__()
        right = [Layer(lambda _, x: x) for _ in range(2)]
        self.first, self.last, self.call = nn.Linear(8, 8), nn.Linear(8, 1), call
        self.layers = nn.ModuleList([right[0], Layer(after, extra), right[1]])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = self.call(layer, x)
        return self.last(x)


def built(
    after: Block = lambda _, x: x, extra: Callable[[], nn.Module] | None = None, **options: Any
) -> Callable[[], tuple[Model, torch.Tensor]]:
    """A ``build`` of such models."""
    return lambda: (Model(after, extra() if extra else None, **options), torch.randn(4, 8))


def _counted(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls += 1
    return x * self.calls


def built_counting() -> tuple[Model, torch.Tensor]:
    """A ``build`` of a model whose second layer changes a tensor in place."""
    model, x = built(_counted)()
    model.layers[1].calls = torch.zeros(8)
    return model, x


def explained(build: Callable[[], Any], impl: str = "torch-nonreentrant") -> Result:
    """The result of a check that explains; it may not agree."""
    (result,) = check(build, impl=impl, explain=True, steps=1).results
    assert result.verdict != "agrees"
    return result


def line_of(file: str, text: str) -> int:
    """The number of the first line of a file that has this text."""
    lines = Path(file).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip() == text)
