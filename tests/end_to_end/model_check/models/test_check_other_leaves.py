"""reprise check: gradients of leaves that are no parameters of the model are compared, or it is told that they are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check.builder import build_subject
from reprise.model_check.checking import check
from reprise.model_check.report import Result
from tests.support.checked_models import built


class Listed(nn.Module):
    """Some of its layers and tensors are in plain containers, so that they are no parameters of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.others = nn.Linear(2, 3), [nn.Linear(3, 4), nn.Linear(4, 4)]
        self.scales = {nn.Linear(1, 1): torch.ones(4, requires_grad=True), "frozen": torch.ones(4, requires_grad=True)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.region, self.first(x), use_reentrant=False)

    def region(self, x: torch.Tensor) -> torch.Tensor:
        scale, _ = self.scales.values()
        return self.others[1](self.others[0](x)).sin() * scale


GLOBAL = torch.ones((), requires_grad=True)
OF_LISTED = ["others[0].weight", "others[0].bias", "others[1].weight", "others[1].bias", "scales[0]"]


def build() -> Any:
    factor = torch.ones((), requires_grad=True)
    return Listed(), lambda model: (model(torch.ones(1, 2)) * factor).square().mean() * GLOBAL


def changing(changed: int) -> Implementation:
    """Runs regions plainly; gives the leaf with so many elements another gradient."""

    def run(function: Callable[..., Any], x: torch.Tensor) -> Any:
        out = function(x)
        nodes, seen = [out.grad_fn], set[Any]()
        while nodes:
            node = nodes.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and leaf.numel() == changed and leaf not in seen:
                seen.add(leaf)
                leaf.register_hook(lambda gradient: gradient * 2)
            nodes += [one for one, _ in node.next_functions if one is not None]
        return out

    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=run)


def gradients_that_differ(result: Result) -> list[str]:
    assert result.comparison is not None
    return [one.name for one in result.comparison.gradients.differing]


@pytest.mark.parametrize("impl", ["nested", "torch-nonreentrant", "torch-reentrant"])
def test_leaves_in_lists_closures_and_globals_are_compared(impl: str) -> None:
    report = check(build, impl=impl)
    (result,) = report.results
    assert report.agrees
    assert result.comparison is not None
    assert result.comparison.gradients.total == 2 + len(OF_LISTED) + 2
    assert report.other_leaves == ()
    assert "cannot be compared" not in str(report)
    assert GLOBAL.grad is None


def test_another_gradient_of_a_tensor_in_a_list_is_a_divergence() -> None:
    (result,) = check(build, impl=changing(12), steps=1).results
    assert (result.verdict, gradients_that_differ(result)) == ("diverges", ["others[0].weight"])


def test_a_missing_gradient_of_a_tensor_in_a_list_is_a_divergence() -> None:
    """Under a reentrant implementation, nothing inside gets a gradient if no input requires one."""

    def frozen() -> Any:
        model = Listed()
        model.first.requires_grad_(False)
        model.last = nn.Linear(4, 1)
        return model, lambda model: model.last(model(torch.ones(1, 2))).square().mean()

    (result,) = check(frozen, impl="torch-reentrant", steps=1).results
    assert result.comparison is not None
    assert (result.verdict, [*result.comparison.gradients.missing]) == ("diverges", OF_LISTED)


def test_gradients_of_inputs_are_compared_and_the_users_stay() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    x.grad = before = torch.ones(4, 8)

    def doubling(function: Callable[..., Any], h: torch.Tensor) -> Any:
        h = h.clone()
        h.register_hook(lambda gradient: gradient * 2)
        return function(h)

    own = Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=doubling)
    report = check(lambda: (built()()[0], x), impl=["nested", own], steps=2)
    assert [one.verdict for one in report.results] == ["agrees", "diverges"]
    assert "example_inputs" in gradients_that_differ(report.results[1])
    assert x.grad is before
    assert torch.equal(before, torch.ones(4, 8))


class Making(nn.Module):
    """Makes two leaves in its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.made = torch.ones(3, requires_grad=True), torch.ones(1, 3, requires_grad=True)
        return checkpoint(torch.mul, self.first(x) * self.made[0], self.made[1], use_reentrant=False)


def test_gradients_that_are_not_compared_are_told() -> None:
    report = check(lambda: (Making(), torch.ones(1, 2)), impl="nested", steps=1)
    assert sorted(report.other_leaves) == ["(1, 3)", "(3,)"]
    assert "not compared: gradients of tensors that were not found in the model and the loss before the step: 2," in str(report)
    assert "nested agrees in what is compared; 2 gradients of the step cannot be compared" in str(report).splitlines()
    assert "not compared" not in str(check(built(), impl="nested", steps=1))


def test_leaves_have_the_same_names_in_each_model() -> None:
    def with_closures() -> Any:
        model, second = build()

        def holding(value: float) -> Any:
            one = torch.full((), value, requires_grad=True)
            return lambda: one

        model.closures, model.in_a_set = [holding(1.0), holding(2.0)], {torch.ones(2, requires_grad=True)}
        return model, second

    one, other = (build_subject(with_closures, None).outside for _ in range(2))
    assert [*one] == [*other]
    assert [value.item() for name, value in one.items() if name.startswith("closure variable one of")] == [1.0, 2.0]
    assert not any("in_a_set" in name for name in one)
    assert {*OF_LISTED} <= one.keys()
