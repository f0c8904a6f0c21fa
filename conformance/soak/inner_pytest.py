"""Runs pytest inside this process, and passes each verdict on as it comes."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from conformance.judging.result import is_worse
from conformance.rows.results_file import Row
from conformance.runs.progress import Silent, display
from conformance.runs.row_collector import PROPERTY


@dataclass(eq=False)  # a plugin has to be hashable
class Listener:
    """A pytest plugin that passes on what a round judges: the row of each test, and tests that ended without one."""

    judged: Callable[[str, Row], None]
    failed: Callable[[str, str, bool], None]
    file: Any
    display: Silent = field(default_factory=Silent)
    ended_by_user: bool = False
    collection_errors: str = ""

    @pytest.hookimpl
    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.ended_by_user = excinfo.type is KeyboardInterrupt  # pytest ends itself by a subclass

    @pytest.hookimpl
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.collection_errors += f"{report.longreprtext}\n" if report.failed else ""

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.display = display(len(session.items), self.file)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if type(self.display) is Silent:
            self.display = display(len(ids), self.file)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row: Any = dict(report.user_properties).get(PROPERTY)
        if row is None and report.failed:
            self.failed(report.nodeid, report.longreprtext, report.when not in ("setup", "call", "teardown"))
        elif row is not None and report.when == "call":
            self.judged(report.nodeid, row)
            self.display.advance(row["law"], row["impl"], not is_worse(row))


def run(listener: Listener, arguments: Sequence[str]) -> tuple[int, str]:
    """Run pytest with these arguments. Returns its status and its output."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        status = pytest.main(list(arguments), plugins=[listener])
    return int(status), text.getvalue()
