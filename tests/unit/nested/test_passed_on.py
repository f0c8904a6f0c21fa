"""A leaf that a node passes on in one run alone: what was saved as a result comes back as a leaf, or the reverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu

from impls import native, nested

Function = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture(params=[nested, native], ids=["nested", "native"])
def checkpoint(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param is native:
        try:
            native.region.require_extension()
        except native.NativeUnavailableError as error:
            pytest.skip(str(error))
    run: Callable[..., Any] = request.param.checkpoint
    return run


class _PassOn(torch.autograd.Function):
    """Gives what it is given; its gradient is three times as large, so that it shows whose node a gradient went through."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return 3 * gradient


def _same(x: torch.Tensor) -> torch.Tensor:
    return x


def _passed_on(x: torch.Tensor) -> torch.Tensor:
    passed: torch.Tensor = _PassOn.apply(x)
    return passed


def _leaf() -> torch.Tensor:
    return torch.arange(1.0, 5.0, dtype=torch.float64).reshape(2, 2).requires_grad_()


def _in_turn(first: Function, again: Function, function: Function) -> Function:
    """``function`` of ``first(x)`` in the first call, of ``again(x)`` in later ones."""
    calls: list[None] = []

    def called(x: torch.Tensor) -> torch.Tensor:
        calls.append(None)
        return function(first(x) if len(calls) == 1 else again(x))

    return called


def _gradients(run: Function, x: torch.Tensor) -> list[torch.Tensor]:
    """The gradient, and that of its square."""
    (once,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    return [once, *torch.autograd.grad((once * once).sum(), x)]


def _cube(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


ORDERS = pytest.mark.parametrize(("first", "again"), [(_passed_on, _same), (_same, _passed_on)], ids=["in-forward", "again"])


@ORDERS
@pytest.mark.parametrize("around", [False, True], ids=["", "hooks-around"])
def test_gradients_go_through_forwards_node(
    checkpoint: Callable[..., Any], first: Function, again: Function, around: bool
) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        function = _in_turn(first, again, _cube)
        if not around:
            return checkpoint(function, x)
        with save_on_cpu():
            return checkpoint(function, x)

    expected = _gradients(lambda x: _cube(first(x)), _leaf())
    assert all(map(torch.equal, _gradients(run, _leaf()), expected))


@ORDERS
def test_a_region_inside_may_be_given_it(checkpoint: Callable[..., Any], first: Function, again: Function) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        inside = _in_turn(first, again, lambda y: checkpoint(_cube, y).sin())
        return checkpoint(inside, x)

    expected = _gradients(lambda x: _cube(first(x)).sin(), _leaf())
    assert all(map(torch.equal, _gradients(run, _leaf()), expected))


@pytest.mark.parametrize(
    ("first", "again"),
    [
        (lambda x: x * 2, _same),
        (lambda x: x * 1, _same),  # it is gone, so nothing tells that it had the same values
        (_same, lambda x: x * 2),
        (torch.t, _same),
        (_same, torch.t),
        (_passed_on, lambda x: (x.detach() * 2).requires_grad_()),
    ],
    ids=["twice", "copied", "twice-again", "transposed", "transposed-again", "another-leaf"],
)
@pytest.mark.parametrize("around", [False, True], ids=["", "hooks-around"])
def test_what_is_not_known_to_have_the_same_values_is_refused(
    checkpoint: Callable[..., Any], first: Function, again: Function, around: bool
) -> None:
    function = _in_turn(first, again, _cube)
    if around:
        with save_on_cpu():
            y = checkpoint(function, _leaf())
    else:
        y = checkpoint(function, _leaf())
    with pytest.raises(nested.CheckpointError, match="recomputation differs from forward"):
        y.sum().backward()


def test_what_was_written_before_it_comes_back_is_refused(checkpoint: Callable[..., Any]) -> None:
    x = _leaf()
    y = checkpoint(_in_turn(_passed_on, _same, _cube), x)
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(nested.CheckpointError, match="changed in place"):
        y.sum().backward()
