"""The mutation score at the end of the tests of the suite itself."""

from __future__ import annotations

import pytest

from conformance.law import all_laws
from conformance.mutants import UNBREAKABLE
from conformance.score import Attempt, score

ATTEMPT = "attempt"  # the property of a test's report in which the attempt is: reports come from other processes too


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the mutation score of the mutants that were tried."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    attempts = [Attempt(**value) for report in reports for name, value in report.user_properties if name == ATTEMPT]
    if attempts:
        terminalreporter.section("mutation score")
        for line in score(attempts, all_laws(), UNBREAKABLE):
            terminalreporter.write_line(line)
