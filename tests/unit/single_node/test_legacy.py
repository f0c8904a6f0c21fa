"""What legacy takes, what it refuses, and that it keeps no random numbers."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from impls.legacy import checkpoint

Pair = namedtuple("Pair", "first second")


def grad(tensor: torch.Tensor) -> torch.Tensor:
    assert tensor.grad is not None
    return tensor.grad


def leaf() -> torch.Tensor:
    return torch.arange(1.0, 4.0).requires_grad_()


def fail(*args: Any) -> None:
    raise AssertionError("the function ran")


@pytest.mark.parametrize(
    ("args", "options", "said"),
    [
        ((leaf(), 3), {}, "argument 1 of the function is of type int"),
        ((None,), {}, "argument 0 of the function is of type NoneType"),
        (([leaf()],), {}, "argument 0 of the function is of type list"),
        ((leaf(),), {"scale": leaf()}, "scale"),
        ((leaf(),), {"preserve_rng_state": True}, "preserve_rng_state"),
    ],
)
def test_anything_but_positional_tensors_is_refused(args: Any, options: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        checkpoint(fail, *args, **options)


def test_a_function_that_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="function is 3"):
        checkpoint(3, leaf())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: (x, 3), "output 1 of the function is of type int"),
        (lambda x: [x], "output 0 of the function is of type list"),
        (lambda x: None, "output 0 of the function is of type NoneType"),
        (lambda x: Pair(x, x), "returned a Pair"),
    ],
)
def test_anything_but_tensors_as_value_is_refused(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        checkpoint(function, leaf())


def test_random_numbers_are_drawn_anew() -> None:
    drawn: Any = []
    checkpoint(lambda x: drawn.append(torch.rand(3)) or x.sin(), leaf()).sum().backward()
    assert len(drawn) == 2
    assert not torch.equal(*drawn)


def test_parameters_get_gradients_but_not_when_no_argument_requires_grad() -> None:
    weight = leaf()
    checkpoint(lambda x: x * weight, torch.ones(3).requires_grad_()).sum().backward()
    assert grad(weight).tolist() == [1.0, 1.0, 1.0]
    assert not checkpoint(lambda x: x * weight, torch.ones(3)).requires_grad
