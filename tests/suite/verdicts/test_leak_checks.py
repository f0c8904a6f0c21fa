"""A growth of objects is a verdict where every step adds to it, and none where another thread makes an object meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from conformance.judging.judge import Case
from conformance.judging.leak_checks import no_growth
from conformance.judging.verdicts import Diverges
from conformance.programs.program import Named
from impls.plain import checkpoint as plain
from tests.support.single_cases import case


def _steps(checkpoint: Any, note: Any, device: str) -> None:
    for step in range(10):
        checkpoint(step)
        note("step")


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    """Another thread that waits, from when it is told to: for that it makes a lock, which stays."""
    go, done = threading.Event(), threading.Event()

    def wait() -> None:
        go.wait(60)
        done.wait(60)

    thread = threading.Thread(target=wait)
    thread.start()
    yield go
    done.set()
    thread.join()


def made(each: Any) -> Case:
    return case(each, Named(_steps))


@pytest.mark.parametrize("every", [1, 2, 3])
def test_what_is_left_behind_at_every_first_second_or_third_step_is_a_growth(every: int) -> None:
    kept: list[Any] = []
    with pytest.raises(Diverges, match=r"changes by \[0, .*\], list by \d; expected: not at all"):
        no_growth(made(lambda step: kept.append([]) if step % every == 0 else None))


def test_what_another_thread_makes_is_no_growth(waiting: threading.Event) -> None:
    steps = itertools.count()
    no_growth(made(lambda step: waiting.set() if next(steps) == 15 else None))  # in the second run, which is measured
    assert next(steps) == 20


def test_steps_that_leave_nothing_do_not_grow() -> None:
    no_growth(made(lambda step: plain(torch.sin, torch.ones(2))))
