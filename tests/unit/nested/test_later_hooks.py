"""Hooks that an argument gets after the call: its recomputation runs without them, and leaves them as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu

from impls import native, nested

Checkpoint = Callable[..., Any]


@pytest.fixture(params=[nested, native], ids=["nested", "native"])
def checkpoint(request: pytest.FixtureRequest) -> Checkpoint:
    if request.param is native:
        try:
            native.region.require_extension()
        except native.NativeUnavailableError as error:
            pytest.skip(str(error))
    run: Checkpoint = request.param.checkpoint
    return run


def _plain(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args)


def _leaf() -> torch.Tensor:
    return torch.linspace(0.25, 1, 4).requires_grad_()


def _force(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0]


def _forces(x: torch.Tensor) -> torch.Tensor:
    return _force(x).tanh() * x


def _double(gradient: torch.Tensor) -> torch.Tensor:
    return 2 * gradient


def _hooks(x: torch.Tensor) -> list[Any]:
    return [*(x._backward_hooks or {}).items()]


def _gradient(run: Checkpoint, use: Callable[[Checkpoint, torch.Tensor], torch.Tensor]) -> torch.Tensor:
    p = _leaf()
    use(run, p).sum().backward()
    assert p.grad is not None
    return p.grad


def _equals_plain(checkpoint: Checkpoint, use: Callable[[Checkpoint, torch.Tensor], torch.Tensor]) -> bool:
    return torch.equal(_gradient(checkpoint, use), _gradient(_plain, use))


@pytest.mark.parametrize("kind", ["result", "leaf", "view"])
@pytest.mark.parametrize("early", [False, True])
def test_later_hook_acts_on_the_outer_gradient_alone(checkpoint: Checkpoint, kind: str, early: bool) -> None:
    def use(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        x = {"result": p.exp(), "leaf": p, "view": p.exp().view_as(p)}[kind]
        if early:
            x.register_hook(lambda gradient: gradient + 1)
        y: torch.Tensor = run(_forces, x)
        x.register_hook(_double)
        return y

    assert _equals_plain(checkpoint, use)


def test_later_hook_on_an_argument_that_is_given_twice(checkpoint: Checkpoint) -> None:
    def use(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        x = p.exp()
        y: torch.Tensor = run(lambda one, two: _forces(one) * _force(two), x, x)
        x.register_hook(_double)
        return y

    assert _equals_plain(checkpoint, use)


def test_later_hook_and_second_derivatives(checkpoint: Checkpoint) -> None:
    def use(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        x = p.exp()
        y = run(_forces, x)
        x.register_hook(_double)
        return torch.autograd.grad(y.sum(), p, create_graph=True)[0]

    assert _equals_plain(checkpoint, use)


def test_hook_of_forward_is_silent_beside_that_of_the_recomputation(checkpoint: Checkpoint) -> None:
    def hooking(x: torch.Tensor) -> torch.Tensor:
        x.register_hook(_double)
        return _forces(x)

    assert _equals_plain(checkpoint, lambda run, p: run(hooking, p.exp()))


@pytest.mark.parametrize("early", [False, True])
def test_later_hook_on_a_result_that_is_gone(checkpoint: Checkpoint, early: bool) -> None:
    def outer(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        h = p.exp()
        if early:
            h.register_hook(lambda gradient: gradient + 1)
        y: torch.Tensor = run(_forces, h)
        h.register_hook(_double)
        return y

    assert _equals_plain(checkpoint, lambda run, p: run(outer, run, p))


def test_later_hook_on_an_argument_that_hooks_copy(checkpoint: Checkpoint) -> None:
    def use(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        with save_on_cpu():
            x = p.exp()
            y: torch.Tensor = run(_forces, x)
        x.register_hook(_double)
        return y

    assert _equals_plain(checkpoint, use)


@pytest.mark.parametrize("fails", [False, True])
def test_hooks_and_handles_are_as_before(checkpoint: Checkpoint, fails: bool) -> None:
    seen: list[Any] = []
    failing: list[bool] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        if failing:
            raise ValueError("program")
        return _forces(x)

    x = _leaf().exp()
    hooks: list[Callable[..., None]] = [lambda gradient: None for _ in range(3)]
    first = x.register_hook(hooks[0])
    y = checkpoint(f, x)
    handles = [x.register_hook(one) for one in hooks[1:]]
    seen.clear()
    if fails:
        failing.append(True)
        with pytest.raises(ValueError, match="program"):
            y.sum().backward()
    else:
        y.sum().backward()
    assert [one is x for one in seen] == [True]
    keys = [first.id, *(one.id for one in handles)]
    assert _hooks(x) == [*zip(keys, hooks, strict=True)]
    handles[0].remove()
    assert _hooks(x) == [(keys[0], hooks[0]), (keys[2], hooks[2])]


def test_hook_that_is_removed_meanwhile_stays_off(checkpoint: Checkpoint) -> None:
    handles: list[Any] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        if handles:
            thread = threading.Thread(target=handles[0].remove)
            thread.start()
            thread.join()
        return _forces(x)

    x = _leaf().exp()
    y = checkpoint(f, x)
    handles.append(x.register_hook(_double))
    y.sum().backward()
    assert not _hooks(x)


def test_hook_is_called_in_the_backward_of_another_thread(checkpoint: Checkpoint) -> None:
    calls: list[Any] = []
    x = _leaf().exp()
    others: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        if others:
            thread = threading.Thread(target=lambda: torch.autograd.grad(others[0], x))
            thread.start()
            thread.join()
        return _forces(x)

    y = checkpoint(f, x)
    x.register_hook(lambda gradient: calls.append(threading.get_ident()))
    others.append((x * 2).sum())
    y.sum().backward()
    assert [one == threading.get_ident() for one in calls] == [False, True]


def test_two_threads_may_silence_a_hook_at_a_time(checkpoint: Checkpoint) -> None:
    calls: list[Any] = []
    barrier = threading.Barrier(2)
    again: list[bool] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        if again:
            barrier.wait(60)
        y = _forces(x)
        if again:
            barrier.wait(60)
        return y

    x = _leaf().exp()
    outputs = [checkpoint(f, x, preserve_rng_state=False) for _ in range(2)]
    handle = x.register_hook(calls.append)
    again.append(True)
    threads = [threading.Thread(target=torch.autograd.grad, args=(y.sum(), x)) for y in outputs]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(calls) == 2
    assert _hooks(x) == [(handle.id, calls.append)]


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_retained_gradient_has_nothing_of_the_recomputation(checkpoint: Checkpoint, early: bool, passes: int) -> None:
    def retained(run: Checkpoint) -> Any:
        x = _leaf().exp()
        if early:
            x.retain_grad()
        y = run(_forces, x)
        x.retain_grad()
        for _ in range(passes):
            y.sum().backward(retain_graph=True)
        return x.grad

    assert torch.equal(retained(checkpoint), retained(_plain))
