"""reprise check: what a region writes before it reads it is neither a fault nor what an explanation names."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from reprise.model_check.checking import check
from reprise.model_check.plain_runs import UNDECIDED
from reprise.model_check.report import Report
from tests.support.checked_models import Block, Model, built, explained

BOTH = ["torch-nonreentrant", "nested"]
NOISE = random.Random(7)  # which no seed of the check reaches


def masked(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.memory[:4, :4] = torch.ones(4, 4).tril()
    return self.memory[:4, :4].clone() @ x


def pooled(self: Any, x: torch.Tensor) -> torch.Tensor:
    part = self.memory.view(-1)[:32].view(4, 8)
    part.zero_()
    part += x.detach()
    return x * part.clone()


def written_out(self: Any, x: torch.Tensor) -> torch.Tensor:
    torch.mul(x.detach(), 2, out=self.memory[:4])
    return x * self.memory[:4].clone()


def copied(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.memory[:4].copy_(x.detach())
    return x * self.memory[:4].clone()


def with_memory(after: Block, noise: float = 0.0, rows: int = 16) -> Callable[[], Any]:
    """A ``build`` whose second layer has memory that is no buffer, behind noise that is outside of regions."""

    def build() -> Any:
        model, x = built(after)()
        vars(model.layers[1])["memory"] = torch.zeros(rows, 8)

        def loss(model: Model) -> torch.Tensor:
            return model(x * (1 + noise * NOISE.random())).square().mean()

        return model, loss

    return build


def kinds(report: Report) -> list[set[str]]:
    return [{one.kind for one in result.warnings} for result in report.results]


@pytest.mark.parametrize("after", [masked, pooled, written_out, copied])
def test_noise_outside_of_regions_is_no_fault_of_what_they_write_first(after: Block) -> None:
    assert [one.verdict for one in check(with_memory(after), impl=BOTH, steps=1).results] == ["agrees", "agrees"]
    noisy = check(with_memory(after, 0.1), impl=BOTH, steps=1, explain=True)
    assert [one.verdict for one in noisy.results] == [UNDECIDED, UNDECIDED]
    assert all("gives the same values as in forward" in str(one.explanation.lines) for one in noisy.results)


@pytest.mark.parametrize("first", [masked, pooled, written_out, copied])
def test_a_fault_behind_what_is_written_first_is_the_one_that_is_named(first: Block) -> None:
    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        return first(self, x) * torch.rand(x.shape, generator=self.generator)

    result = explained(with_memory(after))
    assert "aten.rand.generator gives another value for the same inputs" in "\n".join(result.explanation.lines)


def test_what_an_operator_reads_and_writes_is_named() -> None:
    def doubled(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.mul(self.memory, 2, out=self.memory)
        return x * self.memory.clone()

    def build() -> Any:
        model, x = with_memory(doubled, rows=4)()
        vars(model.layers[1])["memory"] = torch.ones(4, 8)
        return model, x

    result = explained(build)
    assert "aten.mul.out reads another value of its tensor 0" in "\n".join(result.explanation.lines)


def test_memory_that_is_written_first_is_not_called_changed_outside() -> None:
    """Both layers write the same memory, so that the recomputation of the first finds what the second left."""

    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.memory.copy_(x.detach())
        return x * self.memory.clone() * torch.rand(x.shape, generator=self.generator)

    def build() -> Any:
        model, x = with_memory(after, rows=4)()
        second: Any = model.layers[1]
        first: Any = model.layers[0]
        vars(first).update(memory=second.memory, after=after)
        return model, x

    assert kinds(check(build, impl=BOTH, steps=1)) == [{"own generators"}] * 2


@pytest.mark.parametrize("is_out", [False, True])
def test_memory_that_is_written_whole_is_not_called_changed_in_place(is_out: bool) -> None:
    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.mul(x.detach(), 2, out=self.memory) if is_out else self.memory.copy_(x.detach())
        return x + self.call(lambda y: y.sin() + self.memory, x)

    def build() -> Any:
        model, x = with_memory(after, rows=4)()
        vars(model.layers[1])["call"] = model.call
        return model, x

    assert kinds(check(build, impl=BOTH, steps=1)) == [set(), set()]


def test_a_table_that_the_first_call_fills_is_a_cache() -> None:
    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not self.memory[0, 0]:
            self.memory.copy_(torch.ones(4, 8))
        return x + self.memory

    for one in kinds(check(with_memory(after, rows=4), impl=BOTH, steps=1)):
        assert one == {"cache"}


def test_a_region_that_seeds_its_generator_itself_draws_the_same_numbers() -> None:
    def after(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.generator.manual_seed(4)
        return x * torch.rand(x.shape, generator=self.generator)

    report = check(built(after), impl=BOTH, steps=1)
    assert report.agrees
    assert kinds(report) == [set(), set()]
