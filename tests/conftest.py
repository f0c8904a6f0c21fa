"""The mutation score at the end of the tests of the suite itself, and Chromium for those of the page."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import hypothesis
import pytest
import torch

from conformance.distributed.law import FAMILY as RANKED
from conformance.isolation.compiler_cache import own_compiler_cache
from conformance.judging.law import all_laws
from conformance.mutants.mutant import UNBREAKABLE, Mutant
from conformance.mutants.score import Attempt, score
from conformance.runs.device_check import no_seeds_for_absent_devices
from conformance.runs.xdist_scheduler import scheduler
from conformance.simulated_device.device import second
from tests.support.browser import Browser, started

REQUIRED = os.environ.get("REPRISE_BROWSER") == "required"
ATTEMPT = "attempt"  # the property of a test's report in which the attempt is: reports come from other processes too
SAMPLE = 12  # one mutant in so many


def pytest_addoption(parser: pytest.Parser) -> None:
    told = f"which mutants the laws must catch: all, a sample of one in {SAMPLE} that is always the same, or the rest"
    parser.addoption("--mutants", choices=["all", "sample", "rest"], default="all", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Make the simulated device known: autograd counts the devices at its first backward. Compute and compile as a run does.

    Hypothesis draws the same examples in each run, so that a change is to blame for a failure. With
    ``--hypothesis-profile default`` it explores.
    """
    if config.getoption("--hypothesis-profile", None) is None:
        hypothesis.settings.register_profile("fixed", derandomize=True, database=None)
        hypothesis.settings.load_profile("fixed")
    second("cpu")
    torch.set_num_threads(1)
    until_end = ExitStack()
    config.add_cleanup(until_end.close)
    until_end.enter_context(no_seeds_for_absent_devices())
    if not hasattr(config, "workerinput"):
        until_end.enter_context(own_compiler_cache(compiles_here=not config.getoption("numprocesses", None)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """One worker runs all tests that share fixtures or the programs of a law, as in a conformance run."""
    return scheduler(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--mutants")
    left_out = [item for item in items if chosen != "all" and _kind(item) != chosen]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _kind(item: pytest.Item) -> str:
    """Whether a test is run with the sample or with the rest: the sample has all that are no tests of a single mutant.

    It has no mutant that takes a world of ranks, whose start is most of the time.
    """
    given = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    if not isinstance(mutant := given.get("mutant"), Mutant):
        return "sample"
    return "rest" if mutant.family == RANKED or zlib.crc32(mutant.name.encode()) % SAMPLE else "sample"


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """What torch and the suite are made of is not searched at every collection, of which meters and tests ask for many."""
    gc.collect()
    gc.freeze()


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
    """Chromium at 1400 pixels. Afterwards nobody may have complained, and nothing may have been asked of a network."""
    chromium.look(1400, "light")
    chromium.requests(), chromium.complaints()
    yield chromium
    assert chromium.complaints() == []
    assert chromium.requests() == []
