"""Clocks that lie, so that no test comes to depend on what this machine measures, and a checkout that may be published."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import pytest

from conformance.provenance.measured_code import Origin

CLOCKS = "perf_counter", "thread_time", "process_time"  # limits are kept by other ones: monotonic and alarms


def _lying(clock: Callable[[], float], drawn: random.Random) -> Callable[[], float]:
    """The clock, which at each look is further ahead, by a microsecond or by seconds."""
    ahead = 0.0

    def told() -> float:
        nonlocal ahead
        ahead += drawn.expovariate(1) * 10 ** drawn.uniform(-6, 0)
        return clock() + ahead

    return told


@pytest.fixture(scope="module", autouse=True)
def _clocks() -> Iterator[None]:
    drawn = random.Random(0)
    with pytest.MonkeyPatch.context() as patch:
        for name in CLOCKS:
            patch.setattr(time, name, _lying(getattr(time, name), drawn))
        yield


@pytest.fixture(autouse=True)
def _publishable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have changes that are not committed, from which nothing is published."""
    monkeypatch.setattr(Origin, "fault", lambda _: "")
