"""Which published results were measured on older code, and how tables and pages mark them.

Marks are made when a table or page is written. They have markers of their own, so that a check can ignore them: code that
changes makes no table stale.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources
from conformance.rows import results_file
from conformance.rows.results_file import ROOT, Results, Row

MARK = "†"
MEANING = f"{MARK} measured on older code"
BEGIN, END = "<!-- older -->", "<!-- /older -->"
CELL = f"<b>{MARK}</b>"  # at each of thousands of verdicts on the page, without markers
NAMED = 4  # entries that a note names, at most
NO_FINGERPRINT = "no fingerprint"
OLDER, GONE = "older", "gone"  # keys that are added to older rows and tables, and to headers whose commit is missing


def marked(text: str) -> str:
    """The text as a mark in Markdown or HTML."""
    return f"{BEGIN}{text}{END}"


def unmarked(text: str) -> str:
    """A table or page without marks."""
    return re.sub(f"{re.escape(BEGIN)}.*?{re.escape(END)}|{re.escape(CELL)}", "", text, flags=re.DOTALL)


class Now:
    """The present code and commits, with which results are compared."""

    def __init__(self, root: Path = ROOT) -> None:
        self.root, self.sources = root, Sources(root)
        self.pinned = _pinned(root / "pyproject.toml")
        self._commits: dict[str, str] = {}

    def of_results(self, results: Results) -> Results:
        """The results, with reasons added to rows that are older, and to headers whose commit is missing."""
        headers = [run.header for run in results.runs] or [results.header]
        rows = tuple(self._with_reasons(row, headers) for row in results.rows)
        header = self.of_header(results.header)
        return replace(results, rows=rows, header=header, runs=tuple(map(self.of_results, results.runs)))

    def of_table(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """The table of a bench, with names and reasons of what is older by kind, such as ``{"contender": {"nested": …}}``."""
        older: dict[str, dict[str, list[str]]] = {}
        for kind, entries in content.get("fingerprints", {}).items():
            older[kind] = {name: reasons for name, entry in entries.items() if (reasons := self._of_entry(entry))}
        return self.of_header(content) | {OLDER: older}

    def of_header(self, header: Mapping[str, Any]) -> dict[str, Any]:
        """A header, with what is wrong with its commit if that is not there."""
        gone = self.commit_fault(header["suite"]["commit"]) if self._is_repository() else ""
        return {**header, GONE: gone} if gone else dict(header)

    def commit_fault(self, commit: str) -> str:
        """What is wrong with a commit that results name; "" if it is in the history of this checkout."""
        if commit not in self._commits:
            self._commits[commit] = self._commit_fault(commit)
        return self._commits[commit]

    def _commit_fault(self, commit: str) -> str:
        if self._git("cat-file", "-e", f"{commit}^{{commit}}") is None:
            shallow = self._git("rev-parse", "--is-shallow-repository") == "true"
            return f"commit {commit[:10]} is not in this repository" + (", of which this is a shallow clone" if shallow else "")
        is_before = self._git("merge-base", "--is-ancestor", commit, "HEAD") is not None
        return "" if is_before else f"commit {commit[:10]} is not in the history of this checkout"

    def _git(self, *arguments: str) -> str | None:
        return results_file.git(*arguments, root=self.root)

    def _is_repository(self) -> bool:
        return results_file.commit(self.root) != results_file.UNKNOWN

    def _with_reasons(self, row: Row, headers: Iterable[Mapping[str, Any]]) -> Row:
        reasons = min((self.reasons(row, header) for header in headers), key=len)
        return {**row, OLDER: reasons} if reasons else row

    def reasons(self, row: Row, header: Mapping[str, Any]) -> list[str]:
        """Why a row of a conformance run is older than the code: its implementation, its law, or a missing fingerprint."""
        measured = row.get("fingerprints")
        if not measured:
            return [NO_FINGERPRINT]
        present = self._of_row(row, header)
        return [name for name, found in measured.items() if present.get(name) != found]

    def _of_row(self, row: Row, header: Mapping[str, Any]) -> Mapping[str, str]:
        versions = {**header["versions"], **self.pinned}
        found: dict[str, str] = {}
        for make in (measured_code.of_implementation, measured_code.of_law):
            try:
                found |= make(self.sources, row, {**header, "versions": versions})
            except ValueError:  # it no longer exists
                continue
        return found

    def _of_entry(self, entry: Mapping[str, Any]) -> list[str]:
        parts = [part for part in ("implementation", "workload") if part in entry]
        present = [self._required(one) for one in entry["packages"]]
        try:
            found = measured_code.of_roots(self.sources, entry["of"], present, entry["alone"])
        except ValueError:  # a root no longer exists
            return parts
        return [part for part in parts if found.get(part) != entry[part]]

    def _required(self, requirement: str) -> str:
        """A requirement as this project pins it; unchanged if it does not."""
        name = requirement.partition("==")[0]
        return f"{name}=={self.pinned[name]}" if name in self.pinned else requirement


def is_older(content: Mapping[str, Any], **names: str) -> bool:
    """Whether entries of these names in the table of a bench are older; without a fingerprint, they are."""
    if OLDER not in content:
        return False  # it was not compared with the code
    there = content.get("fingerprints", {})
    return any(name not in there.get(kind, ()) or name in content[OLDER][kind] for kind, name in names.items())


def older_names(content: Mapping[str, Any]) -> str:
    """What is older in the table of a bench, by kind, a few by name; "" if nothing is."""
    if OLDER not in content:
        return ""
    if "fingerprints" not in content:
        return f"{MEANING}, all of it"
    kinds = [_named(kind, names, content["fingerprints"][kind]) for kind, names in content[OLDER].items() if names]
    return f"{MEANING}: {'; '.join(kinds)}" if kinds else ""


def _named(kind: str, older: Collection[str], every: Collection[str]) -> str:
    """The older ones of a kind: by name if they are few, else how many of how many."""
    return f"{kind} {', '.join(older)}" if len(older) <= NAMED else f"{len(older)} of {len(every)} {kind}s"


def note(header: Mapping[str, Any]) -> str:
    """What is wrong with the commit of a header; "" if nothing is."""
    return str(header.get(GONE, ""))


def count(rows: Iterable[Row]) -> int:
    """How many rows are older."""
    return sum(OLDER in row for row in rows)


def _pinned(pyproject: Path) -> dict[str, str]:
    """The versions of the peers' packages that ``nox -s peers`` installs, by name; {} if the file does not say."""
    if not pyproject.exists():
        return {}
    with pyproject.open("rb") as file:
        group = tomllib.load(file).get("dependency-groups", {}).get("peers", [])
    pairs = (one.partition("==") for one in group if isinstance(one, str))
    return {name: version for name, equals, version in pairs if equals}
