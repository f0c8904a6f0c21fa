"""Rows of published results that a run with ``--older`` need not judge again.

They are kept if machine, versions, code and declaration are unchanged: programs are drawn by a seed, so that judging again
would give the same row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance.judging.explorer import declaration
from conformance.judging.law import LAWS, all_laws
from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources
from conformance.rows import results_file
from conformance.rows.results_file import Row, is_unexpected
from conformance.runs.selection import Subject

Pair = tuple[str, str]  # a law and an implementation
SAME = ("machine", "versions", "seed", "profile")  # what headers must share
ACCEPTED = "a complete run on the CPU, which is published: without --impl, --profile, --seed, --results and -k"
WORKER = "kept rows"  # the key under which workers of pytest-xdist get them


class KeptRows:
    """A pytest plugin that leaves out pairs of law and implementation that have rows already, and adds these to new rows."""

    def __init__(self, rows: Mapping[Pair, Row] | None = None, told: str = "") -> None:
        self.rows, self._told = dict(rows or {}), told
        self._pairs = set(self.rows)

    def joined(self, rows: Sequence[Row], names: Iterable[str]) -> list[Row]:
        """These rows and those that were kept, by law, and by implementation in the order of ``names``."""
        if not self.rows:
            return [*rows]
        laws, places = list(all_laws()), [*names]
        every = [*rows, *self.rows.values()]
        return sorted(every, key=lambda row: (laws.index(row["law"]), places.index(row["impl"])))

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[WORKER] = sorted(self._pairs)

    def pytest_configure(self, config: pytest.Config) -> None:
        self._pairs |= {(law, impl) for law, impl in getattr(config, "workerinput", {}).get(WORKER, ())}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if _pair(item) not in self._pairs]

    def pytest_report_header(self) -> str:
        return self._told

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.rows and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK  # nothing is older


def _pair(item: pytest.Item) -> Pair | None:
    """The law and the implementation of a test that judges; None for another test."""
    law, call = getattr(getattr(item, "function", None), "law", None), getattr(item, "callspec", None)
    subject = call.params.get("hold") if call else None
    return None if law is None or subject is None else (law.name, subject.implementation.name)


def kept_rows(path: Path, header: Mapping[str, Any], sources: Sources, subjects: list[Subject]) -> KeptRows:
    """The rows in ``path`` that a run with this header, on this code, need not judge again.

    Raises ValueError for a file that does not hold the results of one run.
    """
    try:
        earlier = results_file.read(path)
    except FileNotFoundError:
        return KeptRows(told=f"everything is judged: {path} does not exist")
    if other := [key for key in SAME if earlier.header[key] != header[key]]:
        return KeptRows(told=f"everything is judged: {path} has another {other[0]}, {earlier.header[other[0]]}")
    if earlier.header["suite"]["dirty"]:  # the commit that kept rows would name is not what was measured
        return KeptRows(told=f"everything is judged: {path} was measured with changes that are not committed")
    chosen = {one.implementation.name: one for one in subjects}
    made = {"commit": earlier.header["suite"]["commit"], "date": earlier.header["date"]}
    kept: dict[Pair, Row] = {}
    all_laws()
    for row in earlier.rows:
        if row["impl"] in chosen and (present := _fingerprints(row, header, sources, chosen[row["impl"]])):
            kept[row["law"], row["impl"]] = {"measured": made, **row, "fingerprints": present}
    return KeptRows(kept, f"{len(kept)} of {len(earlier.rows)} rows in {path} are of this code and are kept")


def _fingerprints(row: Row, header: Mapping[str, Any], sources: Sources, subject: Subject) -> dict[str, str]:
    """The present fingerprints of a row that would be the same again; {} if it might not be, or has no script of its own."""
    law = LAWS.get(row["law"])
    if law is None or is_unexpected(row) or "program_in" in row:
        return {}
    told = law.statement, law.family, declaration(law, subject.claims)
    if told != (row["statement"], row["family"], row.get("declaration")):
        return {}
    present, then = measured_code.of_row(sources, row, header), row.get("fingerprints", {})
    compared = "implementation", "law"  # the part of the declaration that concerns this law was compared above
    return present if all(present[name] == then.get(name) for name in compared) else {}
