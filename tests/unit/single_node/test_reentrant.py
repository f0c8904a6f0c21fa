"""What reentrant takes and refuses, what it restores, and what its public functions do."""

from __future__ import annotations

import threading
import warnings
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from impls.reentrant import CheckpointFunction, check_backward_validity, checkpoint

Pair = namedtuple("Pair", "first second")


@dataclass
class Holder:
    """A dataclass that pytree does not know."""

    tensor: Any
    other: Any = None


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
        ((leaf(),), {"scale": 2, "debug": True}, r"\['debug', 'scale'\]"),
        ((leaf(), [leaf()]), {}, "argument 1 of the function is of type list"),
        (({"x": (1, leaf())},), {}, "argument 0 of the function is of type dict"),
        ((Holder([leaf()]),), {}, "argument 0 of the function is of type Holder"),
    ],
)
def test_what_would_get_no_gradient_is_refused_before_the_function_runs(args: Any, options: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        checkpoint(fail, *args, **options)


def test_a_function_that_is_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="function is None"):
        checkpoint(None, leaf())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda x: {"y": x.sin()}, "output 0 of the function is of type dict"),
        (lambda x: (x, [x.sin()]), "output 1 of the function is of type list"),
        (lambda x: (x, Holder(x)), "output 1 of the function is of type Holder"),
        (lambda x: Pair(x, 2), "returned a Pair"),
    ],
)
def test_an_output_that_would_carry_no_gradient_is_refused(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        checkpoint(function, leaf())


def test_containers_pass_where_no_gradient_is_asked() -> None:
    with torch.no_grad():
        assert checkpoint(lambda pair: Pair(*pair), [leaf(), 2]).second == 2
    mask = Holder(torch.ones(3), other={"text": None})
    mask.other["itself"] = mask
    y, counts = checkpoint(lambda x, m: (x * m.tensor, {"count": torch.tensor(3)}), leaf(), mask)
    assert y.requires_grad
    assert counts["count"] == 3


def test_other_values_are_passed_on_and_come_back() -> None:
    x = leaf()
    y, *rest = checkpoint(lambda h, k, kind, none: (h.sin() * k, kind, none, 7), x, 3, torch.float32, None)
    y.sum().backward()
    assert rest == [torch.float32, None, 7]
    assert torch.equal(grad(x), 3 * x.detach().cos())


def test_no_argument_requiring_grad_is_warned_of_unless_grad_is_off() -> None:
    weight = leaf()
    with pytest.warns(UserWarning, match="no argument of the checkpointed function requires grad") as caught:
        assert not checkpoint(lambda h: h * weight, torch.ones(3)).requires_grad
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_backward_validity([3, leaf()])
        with torch.no_grad():
            checkpoint(lambda h: h * weight, torch.ones(3))


def _drawing(drawn: list[Any], error: type[BaseException] | None = None) -> Any:
    def function(h: torch.Tensor, *generators: torch.Generator) -> torch.Tensor:
        drawn.append([torch.rand(2, generator=one).tolist() for one in (torch.default_generator, *generators)])
        if error is not None and len(drawn) == 2:
            raise error("stop")
        return torch.nn.functional.dropout(h.sin())

    return function


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_random_numbers_are_replayed_and_the_streams_go_on(error: type[BaseException] | None) -> None:
    drawn: list[Any] = []
    mine = torch.Generator().manual_seed(3)
    y = checkpoint(_drawing(drawn, error), leaf(), mine)
    torch.manual_seed(5)
    before = torch.get_rng_state(), mine.get_state()
    if error is None:
        y.sum().backward()
    else:
        with pytest.raises(error):
            y.sum().backward()
    assert drawn[0] == drawn[1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(mine.get_state(), before[1])


def test_the_streams_are_left_alone_without_preserve_rng_state() -> None:
    drawn: list[Any] = []
    checkpoint(_drawing(drawn), leaf(), preserve_rng_state=False).sum().backward()
    assert len(drawn) == 2
    assert drawn[0] != drawn[1]


def test_threads_take_turns_in_drawing() -> None:
    drawn: list[list[Any]] = [[], []]
    arrived = [threading.Event(), threading.Event()]

    def region(me: int) -> Any:
        def function(h: torch.Tensor) -> torch.Tensor:
            for _ in range(3):
                drawn[me].append(torch.rand(()).item())
                arrived[me].set()
                arrived[1 - me].wait(0.05)
            return h.sin()

        return function

    outputs = [checkpoint(region(me), leaf()).sum() for me in range(2)]
    for event in arrived:
        event.clear()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(torch.autograd.backward, outputs))
    assert [draws[:3] == draws[3:] for draws in drawn] == [True, True]


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("outer", [False, True])
@pytest.mark.parametrize("error", [False, True])
def test_autocast_is_entered_again_and_left(outer: bool, inner: bool, error: bool) -> None:
    seen: list[Any] = []

    def function(h: torch.Tensor) -> torch.Tensor:
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()))
        if error and len(seen) == 2:
            raise ValueError("stop")
        return (h @ h).float()

    with torch.autocast("cpu", torch.float16, enabled=inner, cache_enabled=False):
        y = checkpoint(function, torch.eye(2).requires_grad_()).sum()
    with torch.autocast("cpu", torch.bfloat16, enabled=outer):
        before = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
        if error:
            with pytest.raises(ValueError, match="stop"):
                y.backward()
        else:
            y.backward()
        after = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()
    assert seen[0] == seen[1]
    assert before == after


def test_a_weight_shared_with_the_outside_keeps_both_gradients_under_autocast() -> None:
    weight = torch.eye(2, requires_grad=True)
    x = torch.ones(2, 2, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = checkpoint(lambda h: h @ weight, x)
        (y.float().sum() + (x.detach() @ weight).float().sum()).backward()
    assert grad(weight).tolist() == [[4.0, 4.0], [4.0, 4.0]]


def test_the_function_is_public() -> None:
    x = leaf()
    CheckpointFunction.apply(torch.exp, True, x).sum().backward()
    assert torch.equal(grad(x), x.detach().exp())
