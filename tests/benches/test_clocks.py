"""What tests of the benches measure is not this machine's time."""

from __future__ import annotations

import itertools
import time

import pytest

from benches.rounds import interleaved
from tests.benches.conftest import CLOCKS


@pytest.mark.parametrize("name", CLOCKS)
def test_a_clock_goes_on_while_nothing_is_done(name: str) -> None:
    clock = getattr(time, name)
    looks = [clock() for _ in range(200)]
    gaps = sorted(later - before for before, later in itertools.pairwise(looks))
    assert gaps[0] >= 0
    assert gaps[-1] > 0.1  # seconds
    assert gaps[len(gaps) // 2] < 0.01


def test_what_does_more_is_told_to_be_faster_in_some_rounds() -> None:
    found = interleaved({"one": lambda: None, "other": lambda: sum(range(50_000))}, rounds=50, calls=1).seconds
    faster = [one < other for one, other in zip(found["one"], found["other"], strict=True)]
    assert {True, False} == set(faster)
