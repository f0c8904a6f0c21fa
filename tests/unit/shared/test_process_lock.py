"""Recomputations that set what the process has once: who waits for whom, who passes whom, and what is put back."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import torch

from conformance.simulated_device.device import second
from impls.nested import CheckpointError, checkpoint
from impls.state import advisory_locks, process_lock, random_numbers, threads
from impls.state.process_lock import PROCESS_LOCK, DisturbedError, ProcessLock, ProcessLockError, run_undisturbed
from impls.state.restoration import Restoration, current_restoration


@contextmanager
def elsewhere(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Work on another thread, joined at the end; what it returned or raised is in the list."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except Exception as error:  # noqa: BLE001 - handed over
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield came
    finally:
        thread.join(30)
        assert not thread.is_alive()


def until(condition: Callable[[], Any]) -> Any:
    for _ in range(1000):
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def random_restoration() -> Restoration:
    return Restoration(None, random_numbers.capture_states())


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONG", 0.05)
    monkeypatch.setattr(threads, "LONGER", 0.2)


def test_one_sleep_is_told_from_the_next() -> None:
    first, between, second_ = (threading.Event() for _ in range(3))
    thread: list[threads.Thread] = []

    def sleeper() -> None:
        thread.append(threads.current_thread())
        first.wait(10)
        between.set()
        second_.wait(10)

    with elsewhere(sleeper):
        until(lambda: thread)
        sleep = until(thread[0].asleep)
        assert thread[0].asleep() == sleep
        first.set()
        between.wait(10)
        assert until(thread[0].asleep) != sleep
        second_.set()


def test_a_thread_that_runs_is_not_asleep() -> None:
    assert threads.current_thread().asleep() is None


def test_one_recomputation_waits_for_another() -> None:
    order: list[str] = []
    inside = threading.Event()

    def other() -> None:
        inside.wait(10)
        with random_restoration():
            order.append("other")

    with elsewhere(other), random_restoration():
        inside.set()
        for _ in range(10):  # never asleep for long
            time.sleep(0.02)
        order.append("first")
    assert order == ["first", "other"]


def test_who_joins_is_passed_and_finds_what_it_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONG", 1000.0)
    before = torch.get_rng_state()

    def other() -> None:
        with random_restoration():
            torch.rand(5)

    with random_restoration():
        torch.manual_seed(1)
        with elsewhere(other) as came:
            pass
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(1)))
    assert came == [None]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("soon")
def test_a_sleeper_that_wakes_too_soon_runs_again_and_so_does_who_passed_it() -> None:
    before = torch.get_rng_state()
    inside, passed, ended = (threading.Event() for _ in range(3))

    def passes() -> None:
        inside.wait(10)
        with random_restoration():
            passed.set()
            ended.wait(10)
            torch.rand(1)

    def sleeps() -> None:
        with random_restoration():
            inside.set()
            passed.wait(10)
            torch.rand(1)

    with elsewhere(passes) as came:
        with pytest.raises(DisturbedError):
            sleeps()
        ended.set()
    assert [type(error) for error in came] == [DisturbedError]
    assert not PROCESS_LOCK.holders
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_disturbed_once_runs_again() -> None:
    attempts: list[bool] = []

    def attempt() -> int:
        attempts.append(threads.current_thread().patient)
        if len(attempts) == 1:
            raise DisturbedError
        return 3

    assert run_undisturbed(attempt) == 3
    assert attempts == [False, True]
    assert not threads.current_thread().patient


def test_the_error_of_who_is_disturbed_twice_is_shown() -> None:
    def attempt() -> None:
        holder = random_restoration()
        with holder:
            holder.disturbed = True
            raise ValueError("program")

    with pytest.raises(ProcessLockError) as refused:
        run_undisturbed(attempt)
    assert str(refused.value.__cause__) == "program"


@pytest.mark.usefixtures("soon")
def test_functions_that_draw_and_wait_for_each_other_are_refused() -> None:
    meeting, backward = threading.Barrier(2), threading.Event()

    def f(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.dropout(x)
        if backward.is_set():
            meeting.wait(10)
        return torch.nn.functional.dropout(x.sin())

    one, other = (checkpoint(f, torch.ones(3, requires_grad=True)).sum() for _ in range(2))
    backward.set()
    with elsewhere(one.backward) as came:
        with pytest.raises((CheckpointError, threading.BrokenBarrierError)) as raised:
            other.backward()
        meeting.abort()  # the one that is left would wait for nobody
    refused = [error for error in (*came, raised.value) if isinstance(error, CheckpointError)]
    assert refused
    assert "wait for each other" in str(refused[0])


def test_who_does_not_end_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_lock, "LIMIT", 0.05)

    def other() -> None:
        with random_restoration():
            pass

    with random_restoration(), elsewhere(other) as came:
        until(lambda: came)
    assert isinstance(came[0], ProcessLockError)
    assert "preserve_rng_state=False" in str(came[0])


def test_autograds_threads_are_part_of_the_recomputation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "LONG", 1000.0)
    device, seen = second("cpu"), []

    def inner(x: torch.Tensor) -> torch.Tensor:
        seen.append((threading.get_ident(), current_restoration() is not None))
        return torch.nn.functional.dropout(x.sin())

    x = torch.ones(3, device=device, requires_grad=True)
    with random_restoration():
        checkpoint(inner, x).sum().backward()
    assert [part for _, part in seen] == [True, True]
    assert len({thread for thread, _ in seen}) == 2
    assert not PROCESS_LOCK.holders


def interrupted() -> KeyboardInterrupt:
    """A recomputation that is interrupted as its lock is to be released, and so is not; with its frames alive."""

    def interrupt(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is ProcessLock.release.__code__:
            sys.settrace(None)
            raise KeyboardInterrupt

    def recompute() -> None:
        with random_restoration():
            sys.settrace(interrupt)

    traced = sys.gettrace()
    try:
        recompute()
    except KeyboardInterrupt as error:
        return error
    finally:
        sys.settrace(traced)
    raise AssertionError("nothing was interrupted")


def test_nobody_waits_for_a_recomputation_that_was_interrupted() -> None:
    error = interrupted()
    assert error.__traceback__ is not None
    assert PROCESS_LOCK.holders
    begun = time.monotonic()
    with elsewhere(random_restoration().__enter__) as came:
        until(lambda: came)
    assert came == [None]
    interrupted()
    with random_restoration():
        assert len(PROCESS_LOCK.holders) == 1
    assert not PROCESS_LOCK.holders
    assert time.monotonic() - begun < 10


def test_what_was_interrupted_inside_a_recomputation_disturbs_it() -> None:
    with pytest.raises(DisturbedError), random_restoration():
        interrupted()
    assert not PROCESS_LOCK.holders


def test_a_recomputation_does_not_wait_for_what_is_under_way() -> None:
    begun = threading.Event()

    def other() -> bool:
        begun.wait(10)
        with random_restoration():
            return advisory_locks.acquire(1)

    with elsewhere(other) as came:
        assert advisory_locks.acquire(1)
        begun.set()
        until(lambda: came)
        advisory_locks.release(1)
    assert came == [False]


@pytest.mark.usefixtures("soon")
def test_what_a_sleeper_has_begun_is_not_waited_for() -> None:
    began, end = threading.Event(), threading.Event()

    def other() -> None:
        assert advisory_locks.acquire(1)
        began.set()
        end.wait(10)
        advisory_locks.release(1)

    with elsewhere(other):
        began.wait(10)
        assert not advisory_locks.acquire(1)
        end.set()


def test_nothing_is_held_in_a_forked_process() -> None:
    inside, end = threading.Event(), threading.Event()

    def other() -> None:
        assert advisory_locks.acquire(1)
        with random_restoration():
            inside.set()
            end.wait(30)
        advisory_locks.release(1)

    with elsewhere(other):
        inside.wait(10)
        if (child := os.fork()) == 0:
            free = advisory_locks.acquire(1) and not PROCESS_LOCK.holders
            with random_restoration():
                os._exit(0 if free else 1)
        end.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_fork_inside_a_recomputation_goes_on_with_it() -> None:
    with random_restoration():
        if (child := os.fork()) == 0:
            with random_restoration():
                os._exit(0 if len(PROCESS_LOCK.holders) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("module", ["nested", "native"])
def test_a_finalizer_may_go_backward_while_its_thread_has_the_lock(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = importlib.import_module(f"impls.{module}").checkpoint
    real, found = random_numbers.set_states, []

    def finalize() -> torch.Tensor:
        x = torch.ones(5, requires_grad=True)
        with torch.enable_grad():
            inner(lambda t: torch.dropout(t.sin(), 0.5, train=True).cos(), x).sum().backward()
        assert x.grad is not None
        return x.grad

    def set_states(states: random_numbers.States) -> None:
        monkeypatch.setattr(process_lock, "set_states", real)  # once
        found.append(finalize())
        real(states)

    monkeypatch.setattr(process_lock, "LIMIT", 5.0)
    monkeypatch.setattr(process_lock, "set_states", set_states)
    torch.manual_seed(0)
    x = torch.randn(5, requires_grad=True)
    y = checkpoint(lambda t: torch.dropout(t.sin(), 0.5, train=True).cos(), x)
    after_forward = torch.get_rng_state()
    y.sum().backward()
    torch.manual_seed(0)
    z = torch.randn(5, requires_grad=True)
    torch.dropout(z.sin(), 0.5, train=True).cos().sum().backward()
    assert x.grad is not None
    assert z.grad is not None
    assert x.grad.equal(z.grad)
    assert len(found) == 1
    assert torch.get_rng_state().equal(after_forward)
    assert PROCESS_LOCK.holders == []
    assert PROCESS_LOCK.calls == 0
