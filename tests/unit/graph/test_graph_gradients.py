"""When register_multi_grad_hook calls, with what, and what it keeps alive."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch

from impls.graph import register_multi_grad_hook

Grads = list[list[bool]]


def _there(log: Grads) -> Any:
    return lambda grads: log.append([grad is not None for grad in grads])


def _leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0], requires_grad=True)


class _Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        raise ZeroDivisionError


def test_all_is_called_with_the_gradients_that_a_backward_computes() -> None:
    a, b = _leaf(), _leaf()
    log: Grads = []
    c, d = a * b, a * b
    register_multi_grad_hook((a, b, c, d), _there(log))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    torch.autograd.grad(c.sum(), a, retain_graph=True)
    torch.autograd.grad((c * 1).sum(), c, retain_graph=True)
    (c + d).sum().backward()
    assert log == [
        [True, True, True, False],
        [True, False, True, False],
        [True, False, True, False],
        [False, False, True, False],
        [True] * 4,
    ]


def test_all_gets_the_values() -> None:
    a, b = _leaf(), torch.tensor([3.0, 4.0], requires_grad=True)
    seen: list[Any] = []
    register_multi_grad_hook([a, b], seen.append)
    (a * b).sum().backward()
    assert [grad.tolist() for grad in seen[0]] == [[3.0, 4.0], [1.0, 2.0]]
    assert a.grad is not None


def test_all_is_called_with_the_last_gradient_and_not_later() -> None:
    order: list[str] = []
    u = _leaf().sin()
    u.register_hook(lambda _: order.append("below"))
    v = u.cos()
    w, apart = v.exp(), u.exp()
    register_multi_grad_hook((v, w, apart), lambda _: order.append("all"))
    w.sum().backward()
    assert order == ["all", "below"]


def test_a_dead_tensor_that_takes_no_part_does_not_prevent_the_call() -> None:
    x = _leaf()
    log: Grads = []
    w, apart = x.exp(), x.sin()
    total = apart.sum()
    register_multi_grad_hook((w, apart), _there(log))
    del apart
    w.sum().backward()
    total.backward()
    assert log == [[True, False], [False, True]]


def test_a_dead_tensor_that_takes_part_is_waited_for() -> None:
    log: Grads = []
    a = _leaf() * 2
    b = a * 3
    register_multi_grad_hook((a, b), _there(log))
    del a
    b.sum().backward()
    assert log == [[True, True]]


@pytest.mark.parametrize("change", [lambda a: a.mul_(5), lambda a: a.detach_()])
def test_the_old_value_of_a_tensor_changed_in_place_is_waited_for(change: Any) -> None:
    log: Grads = []
    a = _leaf() * 2
    b = a * 3
    register_multi_grad_hook((a, b), _there(log))
    change(a)
    b.sum().backward()
    assert log == [[True, True]]


def test_a_tensor_changed_in_place_since_gets_the_gradient_of_its_old_value() -> None:
    seen: list[Any] = []
    a, b = _leaf() * 1, _leaf() * 1
    register_multi_grad_hook((a, b), seen.append)
    a.mul_(5)
    (a + b).sum().backward()
    assert [grad.tolist() for grad in seen[0]] == [[5.0, 5.0], [1.0, 1.0]]


def test_an_output_without_gradient_stands_as_none() -> None:
    log: Grads = []
    a, b = (torch.ones(2, 2, requires_grad=True) * 1).unbind()
    register_multi_grad_hook((a, b), _there(log))
    a.sum().backward()
    assert log == [[True, False]]


def test_a_tensor_that_requires_no_grad_stands_as_none() -> None:
    a = _leaf()
    log: Grads = []
    register_multi_grad_hook((a, torch.ones(2)), _there(log))
    (a * 2).sum().backward()
    assert log == [[True, False]]


def test_any_is_called_once_with_the_first_gradient() -> None:
    seen: list[Any] = []
    x = _leaf()
    y = x * 3
    register_multi_grad_hook((x, y), seen.append, mode="any")
    for _ in range(2):
        y.sum().backward(retain_graph=True)
    assert [grad.tolist() for grad in seen] == [[1.0, 1.0], [1.0, 1.0]]


def test_any_passes_over_an_output_without_gradient() -> None:
    seen: list[Any] = []
    x = torch.ones(2, 2, requires_grad=True) * 1
    _a, b = x.unbind()
    register_multi_grad_hook((_a, x), seen.append, mode="any")
    b.sum().backward()
    assert [grad.shape for grad in seen] == [(2, 2)]


def test_any_is_not_called_where_no_gradient_arrives() -> None:
    seen: list[Any] = []
    a, b = (torch.ones(2, 2, requires_grad=True) * 1).unbind()
    register_multi_grad_hook((a,), seen.append, mode="any")
    b.sum().backward()
    assert seen == []


def test_a_backward_inside_another_is_counted_apart() -> None:
    x = torch.ones(1, requires_grad=True)
    log: Grads = []
    p, q = x * 2, x * 3
    r = p * q
    register_multi_grad_hook((p, q, r), _there(log))

    def inside(_: torch.Tensor) -> None:
        with torch.enable_grad():
            torch.autograd.grad(p.exp().sum(), p)

    r.register_hook(inside)
    r.sum().backward()
    assert log == [[True, False, False], [True, True, True]]


def test_two_backwards_at_once_are_counted_apart() -> None:
    x = _leaf()
    log: Grads = []
    first, second = x.sin(), x.cos()
    register_multi_grad_hook((first, second, x), _there(log))
    meet = threading.Barrier(2, timeout=30)

    def wait(_: torch.Tensor) -> None:
        meet.wait()

    for each in (first, second):
        each.register_hook(wait)
    threads = [threading.Thread(target=each.sum().backward) for each in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(log) == [[False, True, True], [True, False, True]]


@pytest.mark.parametrize("mode", ["all", "any"])
def test_a_backward_that_raises_leaves_nothing_and_the_next_is_counted_anew(mode: Any) -> None:
    x = _leaf()
    calls: list[Any] = []
    bad, good = _Fails.apply(x) * 2, x * 3
    grads: list[weakref.ref[torch.Tensor]] = []
    handle = register_multi_grad_hook((bad, good, x), calls.append, mode=mode)
    bad.register_hook(lambda grad: grads.append(weakref.ref(grad)))
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            bad.sum().backward(retain_graph=True)
    calls.clear()
    gc.collect()
    assert [grad() for grad in grads] == [None, None]
    assert len(handle.registration.passes) == 0  # type: ignore[attr-defined]
    good.sum().backward()
    assert len(calls) == 1


def test_nothing_is_kept_between_backwards() -> None:
    x = _leaf()
    handle = register_multi_grad_hook((x,), lambda _: None, mode="any")
    for _ in range(3):
        (x * 2).sum().backward()
    assert len(handle.registration.passes) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("mode", ["all", "any"])
def test_the_hook_keeps_neither_graph_nor_leaf_alive(leaf: bool, mode: Any) -> None:
    class Token:
        pass

    token = Token()
    gone = weakref.ref(token)
    x = _leaf()
    a = x * 2
    b = a * 3
    register_multi_grad_hook((x,) if leaf else (a, b), lambda _, token=token: None, mode=mode)
    b.sum().backward()
    del x, a, b, token
    gc.collect()
    assert gone() is None


def test_an_error_of_the_function_ends_the_backward() -> None:
    def fail(_: Any) -> None:
        raise ZeroDivisionError

    x = _leaf()
    register_multi_grad_hook((x,), fail)
    with pytest.raises(ZeroDivisionError):
        (x * 2).sum().backward()
