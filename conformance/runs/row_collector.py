"""Collects the rows of a run in the order of its tests, whether this process judges or workers of pytest-xdist do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from conformance.rows.results_file import Row, is_unexpected
from conformance.runs.progress import Silent, display

PROPERTY = "conformance row"


class RowCollector:
    """A pytest plugin of the process that reports. Rows come with the reports of tests, which xdist passes on from workers."""

    def __init__(self) -> None:
        self.display = Silent()
        self._found: dict[str, Row] = {}
        self._order: dict[str, int] = {}

    @property
    def rows(self) -> list[Row]:
        """The rows so far, in the order in which the tests were collected."""
        return [self._found[name] for name in sorted(self._found, key=lambda name: self._order.get(name, len(self._order)))]

    def set_order(self, names: Iterable[str], config: pytest.Config) -> None:
        """Note the tests that will run, in the order in which one process would run them, and start the display."""
        if not self._order:
            self._order = {name: place for place, name in enumerate(names)}
            total = sum("laws/" in name for name in self._order)
            shown = total and config.pluginmanager.has_plugin("terminalreporter")
            self.display = display(total, config.get_terminal_writer()._file) if shown else Silent()

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.set_order((item.nodeid for item in session.items), session.config)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self.set_order(ids, node.config)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row: Any = dict(report.user_properties).get(PROPERTY)
        if report.when == "call" and row is not None:
            self._found[report.nodeid] = row
            self.display.advance(row["law"], row["impl"], not is_unexpected(row))
