"""reprise check: random generators of the user's own, and operators that are not deterministic; remedies that are told work."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check.checking import check
from reprise.model_check.explanations.explanation import NOTHING
from reprise.model_check.explanations.operator_difference import (
    BE_DETERMINISTIC,
    DRAW_ELSEWHERE,
    MAKE_GENERATOR,
    OWN_GENERATOR,
    RESTORE,
    SEED_GENERATOR,
)
from reprise.model_check.reachable.snapshots import digest_of_generator
from reprise.model_check.report import Report
from tests.support.checked_models import built

IMPLS = ["torch-nonreentrant", "nested", "torch-reentrant"]
GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "torch.Generator": (lambda: torch.Generator().manual_seed(3), lambda one: torch.rand((), generator=one)),
    "numpy's default_rng": (lambda: np.random.default_rng(3), lambda one: one.random()),
    "numpy's RandomState": (lambda: np.random.RandomState(3), lambda one: one.rand()),
    "random.Random": (lambda: random.Random(3), lambda one: one.random()),
}


def drawing(make: Callable[[], Any], draw: Callable[[Any], Any]) -> Callable[[], Any]:
    """A ``build`` whose second layer has a generator and draws from it."""

    def build() -> Any:
        model, x = built(lambda self, x: x * float(draw(self.generator)))()
        model.layers[1].generator = make()
        return model, x

    return build


def places(report: Report) -> dict[str, tuple[str, ...]]:
    return {one.kind: one.places for one in report.results[0].warnings}


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize("impl", IMPLS)
def test_a_generator_that_the_recomputation_draws_from_anew_is_warned_of_with_its_line(impl: str, kind: str) -> None:
    make, draw = GENERATORS[kind]
    report = check(drawing(make, draw), impl=impl, steps=1)
    line = draw.__code__.co_firstlineno
    assert report.results[0].verdict == "diverges"
    assert places(report) == {"own generators": (f"layers.1.generator ({__file__}:{line})",)}
    assert f"\n    {DRAW_ELSEWHERE}" in str(report)


@pytest.mark.parametrize("kind", GENERATORS)
@pytest.mark.parametrize(("impl", "is_reached"), [("nested", False), ("torch-nonreentrant-full", True)])
def test_what_is_drawn_at_the_end_of_a_region_is_warned_of_if_the_recomputation_gets_there(
    impl: str, kind: str, is_reached: bool
) -> None:
    make, draw = GENERATORS[kind]

    def build() -> Any:
        model: Any
        model, x = built()()
        one = model.layers[1].generator = make()
        model.layers[1].register_forward_hook(lambda *_: [draw(one)].clear())
        return model, x

    report = check(build, impl=impl, steps=1)
    assert report.agrees
    assert [*places(report)] == (["own generators"] if is_reached else [])


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_that_draws_the_same_again_is_not_warned_of(kind: str) -> None:
    make, draw = GENERATORS[kind]

    def seeded(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.generator = make()
        return x * float(draw(self.generator))

    report = check(built(seeded), impl="nested", steps=1)
    assert report.agrees
    assert not places(report)


def test_a_generator_without_a_state_is_passed_over() -> None:
    assert digest_of_generator(random.SystemRandom()) == ""
    assert check(drawing(random.SystemRandom, lambda _: 1.0), impl="nested", steps=1).agrees


class Scaled(nn.Module):
    """A layer that is a region, and is passed a random number that is drawn outside of it."""

    def __init__(self, draw: Callable[[Any], Any], generator: Any) -> None:
        super().__init__()
        self.layer, self.draw, self.generator = nn.Linear(8, 8), draw, generator

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda x, scale: self.layer(x).sin() * scale, x, self.draw(self.generator), use_reentrant=False)


def passing(make: Callable[[], Any], draw: Callable[[Any], Any]) -> Any:
    return Scaled(draw, make()), torch.randn(2, 8, requires_grad=True)


@pytest.mark.parametrize("impl", IMPLS)
def test_drawing_with_torch_or_outside_of_the_region_helps(impl: str) -> None:
    report = check(built(lambda _, x: x * torch.rand(8)), impl=impl)
    assert (report.agrees, places(report)) == (True, {})
    for make, draw in GENERATORS.values():
        build = functools.partial(passing, make, draw)
        report = check(build, impl=impl)
        assert (report.agrees, places(report)) == (True, {})


def test_the_explanation_says_what_to_do_about_a_generator() -> None:
    report = check(drawing(*GENERATORS["torch.Generator"]), impl="nested", steps=1, explain=True)
    (result,) = report.results
    assert str(report).count(DRAW_ELSEWHERE) == 1  # it is the remedy of the warning, too
    assert result.explanation.remedy == DRAW_ELSEWHERE
    assert result.explanation.lines[2].endswith(OWN_GENERATOR)
    without = dataclasses.replace(report, results=(dataclasses.replace(result, warnings=()),))
    assert f"\n    {DRAW_ELSEWHERE}" in str(without)


OURS, NUMPYS = torch.Generator(), np.random.default_rng()
UNSEEDED: dict[str, tuple[Callable[[], Any], Callable[[], object], str]] = {
    "a generator of torch": (lambda: torch.rand(8, generator=OURS), lambda: OURS.manual_seed(0), MAKE_GENERATOR),
    "data of numpy": (lambda: torch.tensor(NUMPYS.random(8)).float(), lambda: None, SEED_GENERATOR),
}


@pytest.mark.parametrize("case", UNSEEDED)
def test_a_generator_that_build_does_not_seed_is_told_with_a_remedy_that_helps(case: str) -> None:
    draw, seed, remedy = UNSEEDED[case]

    class Outside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.layer, x * draw(), use_reentrant=False)

    report = check(lambda: (Outside(), torch.randn(4, 8)), impl="nested", steps=1)
    assert report.spread_explanation.remedy == remedy
    assert f"\n    {remedy}" in str(report)

    def seeding() -> Any:
        seed()
        NUMPYS.bit_generator.state = np.random.default_rng(0).bit_generator.state
        return Outside(), torch.randn(4, 8)

    report = check(seeding, impl="nested", steps=1)
    assert (report.agrees, report.spread_explanation) == (True, NOTHING)


@torch.library.custom_op("reprise_check::unsteady_unless_told", mutates_args=())
def unsteady(x: torch.Tensor) -> torch.Tensor:
    return x + (0.0 if torch.are_deterministic_algorithms_enabled() else NUMPYS.random())


def scattered(_: Any, x: torch.Tensor) -> torch.Tensor:
    """Adds in an order of PyTorch's own, on several threads, unless algorithms are deterministic."""
    rows = torch.arange(50_000) % 7
    added = torch.zeros(7, 8).index_put((rows,), x.mean(0).expand(50_000, 8), accumulate=True)
    return x + added[:4] * 1e-4


def deterministic(build: Callable[[], Any]) -> Any:
    torch.use_deterministic_algorithms(True)
    return build()


def test_an_operator_that_is_not_deterministic_is_told_with_a_remedy_that_helps() -> None:
    build = built(lambda _, x: x * unsteady(x.detach()))
    report = check(build, impl="nested", steps=1)
    assert report.spread_explanation.remedy == report.results[0].unlike_forward.remedy == BE_DETERMINISTIC
    assert str(report).count(f"\n    {BE_DETERMINISTIC}") == 2
    assert check(lambda: deterministic(build), impl="nested", steps=1).agrees
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("impl", IMPLS)
def test_deterministic_algorithms_help_an_operator_of_pytorchs(impl: str) -> None:
    assert check(lambda: deterministic(built(scattered)), impl=impl).agrees


def test_random_numbers_that_an_implementation_does_not_restore_are_no_operator_that_is_not_deterministic() -> None:
    def unrestored(layer: nn.Module, x: torch.Tensor) -> Any:
        return checkpoint(layer, x, use_reentrant=False, preserve_rng_state=False)

    (result,) = check(built(lambda _, x: x * torch.rand(8), call=unrestored), impl="nested", steps=1, explain=True).results
    assert any("aten.rand.default gives another value for the same inputs" in line for line in result.explanation.lines)
    assert result.explanation.remedy == RESTORE
