"""The findings of soaks: a file with one JSON object a line. Findings are added to it and never removed.

Findings with the same implementation, law, device, verdict and program are one finding, whose occurrences are counted. A
finding that no longer shows is marked as mended, with the date. If it shows again, it is open again.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from conformance.reproducers.script_syntax import has_status, has_threads
from conformance.rows.results_file import ROOT, text_of

KIND = "finding"
DATABASE = ROOT / "results" / "soak" / "findings.jsonl"  # ignored by git, as each machine has its own


@dataclass(frozen=True)
class Finding:
    """A verdict worse than the declared one: where, on which program, by which test and seed, and when.

    ``test`` is the test's name; ``seed`` and ``profile`` are those that drew the program. ``program`` is a script, or "" if
    there is none. ``mended`` is the date on which it no longer showed, or "" while it is open.
    """

    law: str
    impl: str
    device: str
    expected: str
    verdict: str
    detail: str
    program: str
    test: str
    seed: int
    profile: str
    versions: Mapping[str, str]
    suite: Mapping[str, Any]
    first_seen: str
    last_seen: str
    times: int = 1
    mended: str = ""

    @property
    def identity(self) -> tuple[str, ...]:
        return (self.law, self.impl, self.device, self.verdict, self.program)

    @property
    def replayable(self) -> bool:
        """Whether its script measures what the law does, and says so by its status."""
        return has_status(self.program)

    @property
    def may_race(self) -> bool:
        """Whether its program has threads, or it has none, so that one run that shows nothing proves nothing."""
        return has_threads(self.program) or not self.program


@dataclass
class Findings:
    """The findings of a database file."""

    path: Path
    by_identity: dict[tuple[str, ...], Finding] = field(default_factory=dict)

    @property
    def open(self) -> list[Finding]:
        return [finding for finding in self.by_identity.values() if not finding.mended]

    def add(self, found: Finding) -> bool:
        """Add a finding, or count it if it is there. Returns whether it is new, or open again."""
        before = self.by_identity.get(found.identity)
        if before is not None:
            found = replace(before, times=before.times + 1, last_seen=found.last_seen, mended="")
        self.by_identity[found.identity] = found
        self.save()
        return before is None or bool(before.mended)

    def mend(self, finding: Finding, date: str) -> None:
        """Mark a finding as one that no longer shows."""
        self.by_identity[finding.identity] = replace(finding, mended=date)
        self.save()

    def save(self) -> None:
        """Write the database in one step."""
        descriptor, name = tempfile.mkstemp(prefix=self.path.name, suffix=".tmp", dir=self.path.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(json.dumps({"kind": KIND, **asdict(finding)}) + "\n" for finding in self.by_identity.values())
        Path(name).replace(self.path)


def holds_findings(path: Path) -> bool:
    """Whether a file is a database of findings, as its first line says. An empty file is none."""
    with path.open(encoding="utf-8", errors="replace") as file:
        try:
            line = json.loads(file.readline())
        except json.JSONDecodeError:
            return False
    return isinstance(line, dict) and line.get("kind") == KIND


def read(path: Path) -> Findings:
    """Read a database. Raises FileNotFoundError, and ValueError, with file, line and reason, for a malformed file."""
    found = Findings(path)
    for number, text in enumerate(text_of(path).splitlines(), 1):
        finding = _finding(f"{path}: line {number}", text)
        if finding.identity in found.by_identity:
            raise ValueError(f"{path}: line {number} repeats the finding of an earlier line: {finding.impl}, law {finding.law}")
        found.by_identity[finding.identity] = finding
    return found


def _finding(where: str, text: str) -> Finding:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{where} is not JSON: {error}") from error
    if not isinstance(line, dict) or line.pop("kind", None) != KIND:
        raise ValueError(f"{where} is not of kind {KIND!r}")
    wanted = {one.name for one in fields(Finding)}
    if line.keys() != wanted:
        raise ValueError(f"{where} lacks {sorted(wanted - line.keys())} and has {sorted(line.keys() - wanted)} besides")
    for name in ("seed", "times"):
        if type(line[name]) is not int:
            raise ValueError(f"{where} has {name}={line[name]!r}, not an integer")
    for name in sorted(wanted - {"seed", "times", "versions", "suite"}):
        if type(line[name]) is not str:
            raise ValueError(f"{where} has {name}={line[name]!r}, not a string")
    return Finding(**line)


@contextmanager
def opened(path: Path) -> Iterator[Findings]:
    """Open a database for this process alone; a new one if there is no file. Raises ValueError while another process has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"{path} is in use by another run") from error
        yield read(path) if path.exists() else Findings(path)
