"""What holds for every test of a mutant."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

LIMIT = 15.0  # seconds in which threads that a mutant holds up end by themselves


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    """Threads that a mutant left behind would run, with its faults, beside the tests that follow."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + LIMIT
    for thread in set(threading.enumerate()) - before:
        thread.join(max(0.0, end - time.monotonic()))
        assert not thread.is_alive(), f"{thread} is left behind"
