"""The mutation score at the end of the tests of the suite itself, and Chromium for those of the page."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from conformance.judging.law import all_laws
from conformance.mutants.mutant import UNBREAKABLE
from conformance.mutants.score import Attempt, score
from tests.support.browser import Browser, started

REQUIRED = os.environ.get("REPRISE_BROWSER") == "required"
ATTEMPT = "attempt"  # the property of a test's report in which the attempt is: reports come from other processes too


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the mutation score of the mutants that were tried."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    attempts = [Attempt(**value) for report in reports for name, value in report.user_properties if name == ATTEMPT]
    if attempts:
        terminalreporter.section("mutation score")
        for line in score(attempts, all_laws(), UNBREAKABLE):
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    try:
        driver = started(tmp_path_factory.mktemp("chromium"))
    except (ModuleNotFoundError, FileNotFoundError) as missing:
        (pytest.fail if REQUIRED else pytest.skip)(str(missing))
    yield Browser(driver)
    driver.quit()


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """Chromium at 1280 pixels. Afterwards nobody may have complained, and nothing may have been asked of a network."""
    chromium.look(1280, "light")
    chromium.requests(), chromium.complaints()
    yield chromium
    assert chromium.complaints() == []
    assert chromium.requests() == []
