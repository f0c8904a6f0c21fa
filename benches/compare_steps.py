"""What ``python -m benches.compare`` has pytest run: one test for each workload and contender, timed by pytest-benchmark.

Before each round of a contender, plain and the ideal run a round of their own, so what else the machine does falls on all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from benches.compare_measuring import Row, Subject, measure
from benches.contenders import Contender
from benches.workloads import Workload


class Comparison:
    """The plugin that gives the tests their pairs, and gets their rows. One workload at a time is in memory."""

    def __init__(
        self,
        workloads: Sequence[tuple[str, Callable[[], Workload]]],
        contenders: Sequence[Contender],
        *,
        device: str,
        rounds: int,
        told: Callable[[Row, Subject], None],
    ) -> None:
        self.workloads, self.contenders, self.device, self.rounds, self.told = workloads, contenders, device, rounds, told
        self.subject: Subject | None = None

    @pytest.fixture(name="comparison")
    def fixture(self) -> Comparison:
        """Itself."""
        return self

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Every contender on every workload."""
        pairs = [(make, contender) for _, make in self.workloads for contender in self.contenders]
        names = [f"{name}-{contender.name}" for name, _ in self.workloads for contender in self.contenders]
        metafunc.parametrize(("make", "contender"), pairs, ids=names)

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No mark on the terminal for what is in the tables."""
        return None if report.failed else (report.outcome, "", "")

    def of(self, make: Callable[[], Workload]) -> Subject:
        """The subject of a workload, made when its first contender comes."""
        if getattr(self, "made_by", None) is not make:
            self.subject, self.made_by = None, make
            self.subject = Subject(make(), self.device)
        assert self.subject is not None
        return self.subject


def test_step(
    make: Callable[[], Workload], contender: Contender, comparison: Comparison, request: pytest.FixtureRequest
) -> None:
    """A contender is measured on a workload, and what it raises is in its row."""
    subject = comparison.of(make)

    def timing(before: Callable[[], None], target: Callable[[], None]) -> Sequence[float]:
        benchmark: Any = request.getfixturevalue("benchmark")
        benchmark.group = subject.workload.name
        benchmark.pedantic(target, setup=before, rounds=comparison.rounds, warmup_rounds=1)
        return benchmark.stats.stats.data

    comparison.told(measure(subject, contender, timing), subject)
