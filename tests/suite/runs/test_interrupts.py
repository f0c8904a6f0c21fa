"""An interrupt ends judging, whatever the code that it meets makes of it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from conformance.runs import interrupts


@pytest.fixture(autouse=True)
def _handled() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    restore = interrupts.end_at_second(lambda: None)
    yield
    restore()
    signal.signal(signal.SIGINT, before)


def raises_another_error() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    finally:
        raise AssertionError("as Hypothesis does")


def catches_it() -> None:
    with suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


class Finalized:
    """Does something in its finalizer, where Python drops what that raises."""

    def __init__(self, last: Callable[[], object]) -> None:
        self.last = last

    def __del__(self) -> None:
        self.last()


def is_interrupted_in_a_finalizer() -> None:
    Finalized(lambda: signal.raise_signal(signal.SIGINT))


USES = [raises_another_error, catches_it, is_interrupted_in_a_finalizer, lambda: signal.raise_signal(signal.SIGINT)]


@pytest.mark.parametrize("use", USES)
def test_an_interrupt_is_not_lost(use: object) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.not_lost():
        use()  # type: ignore[operator]


def test_python_does_not_report_an_interrupt_that_it_drops(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[str] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: found.append(told.exc_type.__name__))
    is_interrupted_in_a_finalizer()
    Finalized(lambda: 1 / 0)
    assert found == ["ZeroDivisionError"]


def test_without_an_interrupt_an_error_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="x"), interrupts.not_lost():
        raise ValueError("x")
    with interrupts.not_lost():
        pass


def test_a_later_run_in_the_process_does_not_see_it() -> None:
    catches_it()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.end_at_second(lambda: None)()
    with interrupts.not_lost():
        pass
