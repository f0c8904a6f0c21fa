"""The tests that a comparison runs with pytest: one for each workload and contender, timed by pytest-benchmark.

Before each round of a contender, plain and the ideal run a round of their own, so what else the machine does falls on all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from benches.compare.contenders import Contender
from benches.compare.measurement import Row, Subject, measure
from benches.models.workloads import Workload


@dataclass(frozen=True)
class Entry:
    """A workload's name, what makes it, and the contenders on it. So one workload at a time is in memory."""

    name: str
    make: Callable[[], Workload]
    contenders: Sequence[Contender]


class Comparison:
    """The plugin that gives the tests their pairs, and gets their rows."""

    def __init__(
        self, entries: Sequence[Entry], *, device: str, rounds: int, told: Callable[[Row, Subject, Entry], None]
    ) -> None:
        self.entries, self.device, self.rounds, self.told = entries, device, rounds, told
        self.present: tuple[Entry, Subject] | None = None

    @pytest.fixture(name="comparison")
    def fixture(self) -> Comparison:
        """Itself."""
        return self

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Every contender on every workload."""
        pairs = [(entry, contender) for entry in self.entries for contender in entry.contenders]
        names = [f"{entry.name}-{contender.name}" for entry, contender in pairs]
        metafunc.parametrize(("entry", "contender"), pairs, ids=names)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no mark for a test: its row is in the tables."""
        return None if report.failed else (report.outcome, "", "")

    def of(self, entry: Entry) -> Subject:
        """The subject of an entry, made when its first contender comes."""
        if self.present is None or self.present[0] is not entry:
            self.present = None
            gc.collect()
            gc.freeze()  # meters collect garbage, and need not look at what torch is made of
            self.present = entry, Subject(entry.make(), self.device)
        return self.present[1]


def test_step(entry: Entry, contender: Contender, comparison: Comparison, request: pytest.FixtureRequest) -> None:
    """A contender is measured on a workload, and what it raises is in its row."""
    subject = comparison.of(entry)

    def timing(before: Callable[[], None], target: Callable[[], None]) -> Sequence[float]:
        benchmark: Any = request.getfixturevalue("benchmark")
        benchmark.group = subject.workload.name
        benchmark.pedantic(target, setup=before, rounds=comparison.rounds, warmup_rounds=1)
        return benchmark.stats.stats.data

    comparison.told(measure(subject, contender, timing), subject, entry)
