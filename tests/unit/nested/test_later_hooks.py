"""Hooks that an argument gets after the call: its recomputation runs without them, and leaves them as they were."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd.graph import save_on_cpu

from conformance.simulated_device.device import second
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


@pytest.mark.parametrize("gets_attribute", [False, True])
def test_hook_that_is_registered_once_acts_in_the_recomputation(checkpoint: Checkpoint, gets_attribute: bool) -> None:
    def use(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        done: list[bool] = []

        def hooking(x: torch.Tensor) -> torch.Tensor:
            if not (x._backward_hooks if gets_attribute else done):
                x.register_hook(_double)
                done.append(True)
            return _forces(x)

        y: torch.Tensor = run(hooking, p.exp())
        return y

    assert _equals_plain(checkpoint, use)


@pytest.mark.parametrize("nested", [False, True])
def test_gradient_of_what_was_computed_outside_from_an_argument(checkpoint: Checkpoint, nested: bool) -> None:
    def inner(energy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total = energy + x.square().sum()
        return torch.autograd.grad(total, x, create_graph=True)[0].tanh() * x

    def outer(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        x = p.exp()
        return run(inner, x.sin().sum(), x)

    def use(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = run(outer, run, p) if nested else outer(run, p)
        torch.ones(1, requires_grad=True).register_hook(_double)
        return y

    assert _equals_plain(checkpoint, use)


@pytest.mark.parametrize("early", [False, True])
def test_later_hook_on_a_result_of_the_region_around(checkpoint: Checkpoint, early: bool) -> None:
    alive: list[torch.Tensor] = []

    def outer(run: Checkpoint, p: torch.Tensor) -> torch.Tensor:
        h = p.exp()
        alive.append(h)
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


def test_gradients_that_another_backward_adds_meanwhile_stay(checkpoint: Checkpoint) -> None:
    """The function takes no gradient of its own; another thread's backward ends while it runs again."""
    others: list[torch.Tensor] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        if others:
            thread = threading.Thread(target=lambda: others[0].backward(retain_graph=True))
            thread.start()
            thread.join()
        return x.sin()

    x = _leaf().exp()
    x.retain_grad()
    y = checkpoint(f, x)
    others.append((x * 3).sum())
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full((4,), 3.0) + x.detach().cos())


class _Slow(torch.autograd.Function):
    """The identity, whose backward waits until the node of ``_Signal`` has run."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, event: threading.Event) -> torch.Tensor:
        ctx.event = event
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.event.wait(60)
        return gradients[0].clone(), None


class _Signal(torch.autograd.Function):
    """The identity, whose backward sets an event."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, event: threading.Event) -> torch.Tensor:
        ctx.event = event
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.event.set()
        return gradients[0].clone(), None


@pytest.mark.parametrize("retains", [False, True])
def test_hooks_act_in_a_backward_that_goes_on_while_the_recomputation_waits_for_a_device(
    checkpoint: Checkpoint, retains: bool
) -> None:
    device = second("cpu")

    def gradient(run: Checkpoint) -> Any:
        event = threading.Event()

        def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            v = x.detach().to(device).requires_grad_()
            return (torch.autograd.grad(_Slow.apply(v.sin(), event).sum(), v)[0].cpu() * w).sin()

        p, w = _leaf(), _leaf()
        x = p.exp()
        z = _Signal.apply((x * 3).sum(), event)
        event.set()  # in forward and in plain's backward nothing is waited for
        y = run(f, x, w)
        x.register_hook(_double)
        if retains:
            x.retain_grad()
        if run is not _plain:
            event.clear()
        (y.sum() + z).backward()
        return x.grad if retains else p.grad

    assert torch.equal(gradient(checkpoint), gradient(_plain))


@pytest.mark.parametrize("early_stop", [False, True])
def test_hook_that_is_registered_after_a_gradient_is_registered_once(checkpoint: Checkpoint, early_stop: bool) -> None:
    def hooking(x: torch.Tensor) -> torch.Tensor:
        force = _force(x)
        x.register_hook(_double)
        return force + x.cos()

    x, expected = (_leaf().exp().detach().requires_grad_() for _ in range(2))
    checkpoint(hooking, x, early_stop=early_stop).sum().backward()
    hooking(expected).sum().backward()
    assert torch.equal(x.grad, expected.grad)  # type: ignore[arg-type]
    assert len(_hooks(x)) == 1
