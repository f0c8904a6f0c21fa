"""The report of reprise check: what holds for several implementations or globs is said once, and of which it is told."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reprise.model_check.checking import check
from reprise.model_check.remedies import WARNINGS
from reprise.model_check.report import Result, Warned
from tests.support.checked_models import built

ALL = ["torch-nonreentrant", "torch-reentrant", "nested"]


def build_with_batch_norm() -> Any:
    return built(lambda self, x: self.get_submodule("extra")(x), lambda: nn.BatchNorm1d(8))()


def sections(text: str) -> list[str]:
    return text.split("\n\n")[2:]  # after the regions and the table


def test_what_diverges_in_the_same_way_is_said_once() -> None:
    text = str(check(build_with_batch_norm, impl=["torch-nonreentrant", "nested"], steps=1, explain=True))
    verdicts, both = sections(text)
    assert verdicts == "torch-nonreentrant diverges\nnested diverges"
    assert both.startswith("torch-nonreentrant and nested:\n  buffers: 3 of 6 differ: ")
    for told in ("smallest set of regions", "  warning: buffers are updated again", WARNINGS["buffers"][1]):
        assert (text.count(told), told in both) == (1, True)


def test_what_holds_for_one_alone_stands_under_its_verdict() -> None:
    def frozen() -> Any:
        model, x = build_with_batch_norm()
        model.first.requires_grad_(False)
        return model, x

    text = str(check(frozen, impl=ALL, steps=1))
    first, reentrant, other, *_ = sections(text)
    assert reentrant.startswith("torch-reentrant diverges\n  gradients: ")
    assert "no input requires grad" in reentrant
    assert "no input requires grad" not in first + other
    assert text.count("warning: no input requires grad") == 1


def warned(name: str, *places: str) -> Result:
    return Result(name, "agrees", warnings=(Warned("cache", "it is filled again, in", "Switch it off.", places),))


def test_a_warning_with_other_places_has_these_by_implementation_and_its_remedy_once() -> None:
    results = warned("a", "layers.0"), warned("b", "layers.1"), warned("c", "layers.0")
    report = dataclasses.replace(check(built(), impl="nested", steps=1), results=results)
    assert str(report).endswith(
        "a agrees\nb agrees\nc agrees\n\na, b and c:\n  warning: it is filled again, in:\n"
        "    a and c: layers.0\n    b: layers.1\n    Switch it off."
    )


class Listed(nn.Module):
    """Has lists of layers, which no step calls."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = (nn.ModuleList([nn.Linear(4, 4)]) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in (*self.one, *self.other):
            x = layer(x)
        return checkpoint(torch.sin, x, use_reentrant=False)


def test_globs_that_match_what_is_not_called_are_told_in_one_sentence() -> None:
    lines = str(check(lambda: (Listed(), torch.ones(4)), impl="nested", regions=["one", "other"], steps=1)).splitlines()
    place = lines.index("these match modules that the step does not call, which are no regions:")
    assert lines[place + 1 : place + 3] == ["  --regions one: one", "  --regions other: other"]


def test_an_error_that_the_verdict_has_is_not_told_again_and_its_explanation_is_told_once() -> None:
    def shortens(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(x.detach())
        return x[len(self.kept) :].sin().sum() + x

    report = check(built(shortens), impl=["torch-nonreentrant", "nested"], steps=1, explain=True)
    text = str(report)
    assert [one.verdict for one in report.results] == ["refuses", "refuses"]
    assert all(one.explanation.ended_by == one.error.splitlines()[0] for one in report.results)
    assert "ended by" not in text
    assert text.count("smallest set of regions that shows it") == text.count("aten.slice.Tensor is called with") == 1
