"""reprise check of models whose plain runs differ: a recomputation is accused for values that backward reads, and no others."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from reprise.model_check.checking import check
from reprise.model_check.explanations.explanation import NOTHING
from reprise.model_check.plain_runs import UNDECIDED
from reprise.model_check.report import Result
from tests.support.checked_models import Block, Model, built

NOISE = random.Random(6)  # which no seed of the check reaches
IMPLS = ["torch-nonreentrant", "torch-reentrant", "nested"]


@torch.library.custom_op("reprise_check::drifting", mutates_args=())
def drifting(x: torch.Tensor) -> torch.Tensor:
    return x + NOISE.random()


def noisy(after: Block, extra: Callable[[], nn.Module] | None = None) -> Callable[[], Any]:
    """A ``build`` of models with noise around the regions, in their inputs."""

    def made() -> Any:
        model, x = built(after, extra)()
        return model, x + NOISE.random()

    return made


def result(after: Block, impl: str = "torch-nonreentrant", extra: Callable[[], nn.Module] | None = None) -> Result:
    return check(noisy(after, extra), impl=impl, steps=1).results[0]


def logs_a_number(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.kept.append(drifting(x.detach()).mean().item())
    return x


def logs_a_tensor(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.statistic = drifting(x.detach()).square().mean()
    return x


def rounds_it_off(_: Any, x: torch.Tensor) -> torch.Tensor:
    """The value differs, and its sign does not."""
    return x * (drifting(x.detach().abs()) + 1).sign()


def has_another_loss(self: Any, x: torch.Tensor) -> torch.Tensor:
    """What is saved for a gradient that nobody asks for."""
    self.kept.append((x * drifting(x.detach())).sin().sum())
    return x


HARMLESS = [logs_a_number, logs_a_tensor, rounds_it_off]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("harmless", [*HARMLESS, has_another_loss])
def test_a_value_that_backward_does_not_read_is_no_fault(harmless: Block, impl: str) -> None:
    found = result(harmless, impl)
    assert (found.verdict, found.unlike_forward) == (UNDECIDED, NOTHING)


class Last(nn.Module):
    """Its last operator adds other noise in the recomputation, and saves nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.linear(x).sin()
        return y + drifting(y.detach())


@pytest.mark.parametrize("impl", IMPLS)
def test_noise_in_a_result_that_forward_keeps_is_no_fault(impl: str) -> None:
    def made() -> Any:
        model: Any = Model(lambda _, x: x)
        model.layers[1] = Last()
        return model, torch.randn(4, 8)

    (found,) = check(made, impl=impl, steps=1).results
    assert (found.verdict, found.unlike_forward) == (UNDECIDED, NOTHING)


def multiplies(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * drifting(x.detach())


def adds(_: Any, x: torch.Tensor) -> torch.Tensor:
    """The sine of ``Layer`` saves the sum."""
    return x + drifting(x.detach())


def casts(_: Any, x: torch.Tensor) -> torch.Tensor:
    return (x.double() * drifting(x.detach()).double()).float()


def views(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * drifting(x.detach()).view(-1).view(4, 8).t().t()[:, :]


def writes_in_place(_: Any, x: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(4, 8)
    mask[:2].copy_(drifting(x.detach())[:2])
    return x * mask


def by_way_of_a_number(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * drifting(x.detach()).mean().item()


def into_a_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.count.copy_(drifting(x.detach()).mean())
    return x


FAULTS = [multiplies, adds, casts, views, writes_in_place, by_way_of_a_number, into_a_buffer]


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_value_that_backward_reads_is_a_fault(fault: Block, impl: str) -> None:
    found = result(fault, impl)
    assert found.verdict == "diverges"
    line = found.unlike_forward.lines[1]
    by_number = fault is by_way_of_a_number
    assert ("aten.mul.Tensor is called with" if by_number else "reprise_check.drifting.default gives another value") in line


@pytest.mark.parametrize("harmless", HARMLESS)
def test_a_fault_behind_a_harmless_difference_is_named(harmless: Block) -> None:
    def both(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = harmless(self, x)
        return x * drifting(x.detach())

    found = result(both)
    assert found.verdict == "diverges"
    assert "reprise_check.drifting.default gives another value" in found.unlike_forward.lines[1]
    assert found.unlike_forward.lines[2] == f"  in forward at {__file__}:{both.__code__.co_firstlineno + 2}"


def large(after: Block) -> Callable[[], Any]:
    """A ``build`` of models whose peak is less if regions are checkpointed; each does what ``after`` does."""

    def larger(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = after(self, x)
        for _ in range(8):
            x = x.sin()
        return x

    def made() -> Any:
        model, x = noisy(larger)()
        for layer in model.layers:
            layer.after = larger
        return model, x

    return made


def test_a_fault_of_regions_that_are_chosen_for_a_budget_is_found() -> None:
    """With all regions it is found, too; those that are chosen are looked at by themselves."""
    pytest.importorskip("scipy")
    report = check(large(multiplies), impl="nested", budget="80%", steps=1)
    (found,) = report.results
    assert found.choice is not None
    assert found.choice.verdict == "diverges"
    assert "reprise_check.drifting.default gives another value" in found.choice.unlike_forward.lines[1]
    assert str(report).count("here a recomputation computes other values than its own forward") == 2


def test_what_backward_does_not_read_is_no_fault_of_chosen_regions() -> None:
    pytest.importorskip("scipy")
    (found,) = check(large(logs_a_tensor), impl="nested", budget="80%", steps=1).results
    assert found.choice is not None
    assert (found.choice.verdict, found.choice.unlike_forward) == (UNDECIDED, NOTHING)


def test_the_page_says_what_is_compared() -> None:
    page = (Path(__file__).parents[4] / "docs" / "checking-your-model.md").read_text(encoding="utf-8")
    assert "by the same operators, and backward reads one of them" in page
