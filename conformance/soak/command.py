"""Judges implementations on programs of fresh seeds until the time is over, and keeps what it finds.

Every round is a run of all laws with a seed of its own. When the time is over, no further law is started, and scripts are
reduced, which may take as long again. A finding is a verdict worse than the declared one, or the end of a process; a declared
limit that does not show in a round is none. Findings are kept in a database. The next soak begins with those of its
implementations, and marks those that no longer show as mended.
"""

from __future__ import annotations

import importlib.util
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import impls
from conformance.judging.result import is_worse
from conformance.reproducers import findings
from conformance.reproducers.findings import Finding, Findings
from conformance.reproducers.reduction import MEETINGS
from conformance.reproducers.replay import replay
from conformance.reproducers.script_files import reduce_scripts
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption, command
from conformance.rows.results_file import ROOT, Row
from conformance.soak import inner_pytest
from conformance.soak.inner_pytest import Listener
from conformance.soak.soak_options import find_targets

WORKERS = (os.cpu_count() or 1) if importlib.util.find_spec("xdist") else 0
SEEDS = 2**31
RAN = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)


@dataclass
class Soak:
    """One soak: how it is run, the database, and what was found so far. ``versions`` and ``suite`` are as in results.

    ``implementations`` maps each value of ``--impl`` to the name in rows; empty, it stands for all built-in ones.
    """

    database: Findings
    device: str
    profile: str
    workers: int
    implementations: Mapping[str, str]
    versions: Mapping[str, str]
    suite: Mapping[str, Any]
    write: Callable[[str], None]
    file: Any = None
    like: str | None = None
    verdicts: int = 0
    cases: int = 0
    new: list[Finding] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    judged: set[str] = field(default_factory=set)

    def round(self, seed: int, tests: Sequence[str] = ("conformance",), until: float | None = None) -> list[Finding]:
        """Run tests with a seed. Raises KeyboardInterrupt if the user ends it, ValueError if pytest cannot run."""
        worse: dict[str, Row] = {}

        def judged(test: str, row: Row) -> None:
            self.verdicts += 1
            self.cases += row["cases"]
            if is_worse(row):
                worse[test] = row

        def failed(test: str, told: str, process_ended: bool) -> None:
            if not process_ended:
                self.errors.append(f"{test}, seed {seed}: {told}")
                return
            law, _, name = test.rpartition("::test_")[2].partition("[")
            fault = {"verdict": "crashes", "detail": "the process ended", "program": "", "expected": "any verdict"}
            worse[test] = {"law": law, "impl": name.removesuffix("]"), **fault}

        listener = Listener(judged, failed, self.file or io.StringIO())
        status, text = inner_pytest.run(listener, [*self.arguments(seed, until), *(str(ROOT / test) for test in tests)])
        listener.display.stop()
        rows = reduce_scripts(list(worse.values()))  # so that a finding that is met again has the same script
        found = [self.keep(test, seed, row) for test, row in zip(worse, rows, strict=True)]
        if listener.ended_by_user:
            raise KeyboardInterrupt
        if status not in RAN:
            raise ValueError(f"pytest could not run {', '.join(tests)} with seed {seed}:\n{listener.collection_errors}{text}")
        return found

    def arguments(self, seed: int, until: float | None) -> list[str]:
        """The arguments of pytest."""
        told = ["--profile", self.profile, "--seed", str(seed), "--device", self.device]
        told += ["-p", "no:cacheprovider", "-p", "no:terminal"]  # without the latter, results would be written
        told += [part for name in self.implementations for part in ("--impl", name)]
        told += ["--like", self.like] if self.like else []
        told += ["-n", str(self.workers)] if self.workers else []
        return told + (["--until", str(until)] if until is not None else [])

    def keep(self, test: str, seed: int, row: Row) -> Finding:
        """Make a finding and add it to the database."""
        self.judged.add(row["impl"])
        now = _now()
        found = Finding(
            row["law"], row["impl"], self.device, row["expected"], row["verdict"], row["detail"], row["program"],
            test, seed, self.profile, self.versions, self.suite, first_seen=now, last_seen=now,
        )  # fmt: skip
        if self.database.add(found):
            self.new.append(found)
        return found

    @property
    def open(self) -> list[Finding]:
        """The open findings of the implementations that this soak judges, on its device."""
        mine = {*(self.implementations.values() or impls.names()), *self.judged}
        return [one for one in self.database.open if one.impl in mine and one.device == self.device]

    def replay(self) -> None:
        """Check each open finding: run its script or, if there is none, its test with its seed.

        A finding that may be a race is mended only if neither shows it in many runs.
        """
        scripts = [finding for finding in self.open if finding.replayable]
        gone = []
        for finding, (_, ended) in zip(scripts, replay([asdict(one) for one in scripts]), strict=True):
            if ended.status == 0:
                gone.append(finding)
        for finding in self.open:
            if finding in gone and not finding.may_race:
                self.mend(finding)
            elif finding in gone or not finding.replayable:
                times = MEETINGS if finding.may_race else 1
                if not any(self.still_shows(finding) for _ in range(times)):
                    self.mend(finding)

    def still_shows(self, finding: Finding) -> bool:
        """Whether the test of a finding gives the same verdict with its seed. True if the test cannot be run."""
        names = {called: name for name, called in self.implementations.items()}
        self.implementations, chosen = {names.get(finding.impl, finding.impl): finding.impl}, self.implementations
        self.profile, profile = finding.profile, self.profile
        before = self.verdicts
        try:
            found = self.round(finding.seed, [finding.test])
        except ValueError as error:
            self.write(f"cannot be judged again: {finding.impl}, law {finding.law}: {error}")
            return True
        finally:
            self.implementations, self.profile = chosen, profile
        return self.verdicts == before or any(one.verdict == finding.verdict for one in found)

    def mend(self, finding: Finding) -> None:
        """Mark a finding as one that no longer shows."""
        self.database.mend(finding, _now())
        self.write(f"mended: {finding.impl}, law {finding.law}: {finding.verdict}")

    def run(self, base: int, until: float) -> int:
        """Run rounds until that time, with seeds from ``base`` on. Returns how many."""
        rounds = 0
        while time.time() < until:
            verdicts, cases, started = self.verdicts, self.cases, time.perf_counter()
            found = self.round(base + rounds, until=until)
            seconds = time.perf_counter() - started
            self.write(
                f"round {rounds + 1}, seed {base + rounds}: {self.verdicts - verdicts} verdicts, {self.cases - cases} cases "
                f"in {seconds:.0f} s, {len(found)} findings"
            )
            rounds += 1
        return rounds

    def summary(self) -> str:
        """What was found, and what is open, by law."""
        lines = [f"{self.verdicts} verdicts on {self.cases} cases"]
        still, others = self.open, len(self.database.open) - len(self.open)
        laws, mended = Counter(finding.law for finding in still), len(self.database.by_identity) - len(self.database.open)
        lines.append(f"findings: {len(self.new)} new, {len(still)} open, {mended} mended")
        lines += [f"  and {others} open ones of implementations that were not judged now"] if others else []
        for law, count in laws.most_common():
            lines.append(f"  {law}: {count}")
            lines += [
                f"    {one.impl}: {one.verdict}, expected {one.expected}; seed {one.seed}, profile {one.profile}, "
                f"met {one.times} times"
                for one in still
                if one.law == law
            ]
        lines += [f"a law's own code failed: {error}" for error in self.errors]
        if still:
            lines.append(f"scripts: {command('replay', self.database.path)}")
        return "\n".join(lines)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def database_path(text: str) -> Path:
    """The path of an existing or a new database. Raises ValueError for another file."""
    path = Path(text)
    if path.is_dir():
        raise ValueError(f"{text} is a directory; accepted is the path of a file")
    try:
        if path.exists():
            findings.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"{error}; accepted is a file that a soak wrote, or a new one") from error
    return path


def soak(
    *,
    minutes: float = 20.0,
    workers: int = WORKERS,
    impl: Sequence[str] = (),
    like: str | None = None,
    device: str = "cpu",
    seed: int | None = None,
    profile: str = "round",
    path: Path = findings.DATABASE,
) -> bool:
    """Judge until the time is over, and print what is found. Returns whether no finding is open of what was judged.

    ``impl``, ``like``, ``device`` and ``profile`` are as in a conformance run. ``seed`` is that of the first round, and each
    round adds 1; without it, seeds are fresh. Raises InvalidOption for what cannot be judged and for a database that cannot be
    used, before anything is judged, and if nothing was judged in the time.
    """
    try:
        wanted = find_targets(impl=impl, like=like, device=device, profile=profile)
    except ValueError as error:
        raise InvalidOption(str(error)) from error
    base = int.from_bytes(os.urandom(4)) % SEEDS if seed is None else seed
    until = time.time() + 60 * minutes
    file = os.fdopen(os.dup(sys.__stdout__.fileno()), "w") if sys.__stdout__ else None  # pytest captures the other one
    _write(f"seeds from {base} on; {minutes:g} minutes on {device}, {workers or 'no'} workers")
    for warning in wanted.warnings:
        _write(warning)
    header = results_file.header(base, profile, "cpu")
    try:
        with findings.opened(path) as database:
            run = device, profile, workers, wanted.implementations, header["versions"], header["suite"]
            return _soaked(Soak(database, *run, _write, file, like), base, until, minutes)
    except (OSError, ValueError) as error:
        raise InvalidOption(str(error)) from error


def _soaked(one: Soak, base: int, until: float, minutes: float) -> bool:
    rounds = 0
    try:
        one.replay()
        rounds = one.run(base, until)
    except KeyboardInterrupt:
        one.write("ended by the user")
    one.write(f"{rounds} rounds, {one.summary()}")
    if not one.verdicts and not one.open:
        raise ValueError(f"--minutes {minutes:g}: no law was judged in that time")
    return not (one.open or one.errors)


def _write(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
