"""An interrupt ends judging, whatever the code that it meets makes of it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
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


@pytest.mark.parametrize("use", [raises_another_error, catches_it, lambda: signal.raise_signal(signal.SIGINT)])
def test_an_interrupt_is_not_lost(use: object) -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.not_lost():
        use()  # type: ignore[operator]


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
