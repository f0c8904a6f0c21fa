"""A chain is cut into segments, and arguments that make no chain are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from impls import legacy, nested, reentrant
from impls.sequential import sequential

Chain = Callable[..., Any]
CHAINS = [legacy.checkpoint_sequential, reentrant.checkpoint_sequential, nested.checkpoint_sequential]


def grad(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def functions(count: int, called: list[int]) -> list[Callable[[torch.Tensor], torch.Tensor]]:
    def numbered(index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def function(value: torch.Tensor) -> torch.Tensor:
            called.append(index)
            return value.sin() + index

        return function

    return [numbered(index) for index in range(count)]


@pytest.mark.parametrize(("segments", "sizes"), [(1, []), (2, [3]), (3, [2, 2]), (7, [1] * 6)])
def test_all_segments_but_the_last_are_checkpointed(segments: int, sizes: list[int]) -> None:
    called: list[int] = []
    seen: list[int] = []

    def checkpoint(function: Chain, *args: Any) -> Any:
        before = len(called)
        value = function(*args)
        seen.append(len(called) - before)
        return value

    sequential(checkpoint, functions(7, called), segments, torch.ones(2))
    assert called == list(range(7))
    assert seen == sizes


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", [list, tuple])
def test_gradients_are_those_of_the_chain(chain: Chain, kind: type) -> None:
    x, y = (torch.arange(3.0).requires_grad_() for _ in range(2))
    parts = kind(functions(5, []))
    chain(parts, 2, x).sum().backward()
    sequential(lambda function, *args: function(*args), parts, 2, y).sum().backward()
    assert torch.equal(grad(x), grad(y))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("container", [lambda m: nn.Sequential(m, nn.Tanh(), m), lambda m: nn.ModuleList([m, nn.Tanh(), m])])
def test_a_module_that_stands_twice_in_a_chain_runs_twice(chain: Chain, container: Callable[..., Any]) -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(1, 2, requires_grad=True)
    assert torch.equal(chain(container(layer), 2, x), layer(torch.tanh(layer(x))))


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(
    ("parts", "segments", "error", "said"),
    [
        ([torch.sin], 0, ValueError, "segments is 0"),
        ([torch.sin], -1, ValueError, "segments is -1"),
        ([torch.sin], 2, ValueError, "segments is 2.*number of functions, 1"),
        ([], 1, ValueError, "number of functions, 0"),
        ([torch.sin], True, TypeError, "segments is True"),
        ([torch.sin], 1.0, TypeError, "segments is 1.0"),
        (torch.sin, 1, TypeError, "functions is of type builtin"),
        ("sin", 1, TypeError, "functions is of type str"),
        (iter([torch.sin]), 1, TypeError, "functions is of type list_iterator"),
        ([torch.sin, None], 1, TypeError, r"functions\[1\] is None"),
    ],
)
def test_what_makes_no_chain_is_refused(chain: Chain, parts: Any, segments: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        chain(parts, segments, torch.ones(1))


def test_a_tuple_goes_on_as_one_value() -> None:
    parts = [lambda x: (x, x + 1), lambda pair: pair[0] * pair[1]]
    x = torch.ones(2, requires_grad=True)
    assert nested.checkpoint_sequential(parts, 2, x).tolist() == [2.0, 2.0]


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_legacy_spreads_a_tuple_over_the_next_function(segments: int) -> None:
    parts = [lambda a, b: (a * b, b), lambda a, b: (a + b, b), lambda a, b: a - 2 * b]
    x, y = torch.full((1,), 3.0, requires_grad=True), torch.full((1,), 2.0, requires_grad=True)
    value = legacy.checkpoint_sequential(parts, segments, x, y)
    value.backward()
    assert [value.item(), grad(x).item(), grad(y).item()] == [4.0, 2.0, 2.0]


def test_options_reach_the_checkpoint() -> None:
    x = torch.ones(3, requires_grad=True)
    state = torch.get_rng_state()
    seen: list[torch.Tensor] = []

    def draw(value: torch.Tensor) -> torch.Tensor:
        seen.append(torch.rand(3))
        return value.sin()

    reentrant.checkpoint_sequential([draw, torch.cos], 2, x, preserve_rng_state=False).sum().backward()
    assert not torch.equal(*seen)
    torch.set_rng_state(state)


@pytest.mark.parametrize(("chain", "own"), [(reentrant.checkpoint_sequential, True), (nested.checkpoint_sequential, False)])
@pytest.mark.parametrize("by_name", [False, True])
def test_use_reentrant_stands_where_pytorch_has_it(chain: Chain, own: bool, by_name: bool) -> None:
    def call(use_reentrant: bool, count: int = 2) -> Any:
        x = torch.ones(64, requires_grad=True)
        parts = [nn.Dropout(0.5)] * count
        value = chain(parts, count, x, use_reentrant=use_reentrant) if by_name else chain(parts, count, x, use_reentrant)
        value.sum().backward()
        return value, grad(x)

    value, gradient = call(own)  # by which random numbers are preserved
    assert torch.equal(value, gradient)
    for count in (1, 2):
        with pytest.raises(ValueError, match=f"use_reentrant is {not own}"):
            call(not own, count)
