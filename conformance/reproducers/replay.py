"""Runs the scripts of a results file again, each in a process of its own, and says which of them no longer show their fault.

A script shows its fault if the code after its program ends it with status 1; status 1 by a module, the implementation or the
program does not count. Scripts that only print, because the law measures more than they do, are counted but not run.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from conformance.reproducers import findings, script_process
from conformance.reproducers.script_process import ERROR, Ended
from conformance.reproducers.script_syntax import has_status
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import FAULTS, Row, read_all

SECONDS = 60.0
TRIES = 20  # runs of a script that shows nothing, as threads do not always meet


def standalone(rows: Iterable[Row]) -> list[Row]:
    """The rows of faults whose script measures what the law does, and says so by its status."""
    return [row for row in _faults(rows) if has_status(row["program"])]


def _faults(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["verdict"] in FAULTS and row["program"]]


def scripts(path: Path) -> list[Row]:
    """What can be replayed from a results file, or from the open findings of a database; raises as reading them does."""
    return standalone(_written(path))


def _written(path: Path) -> list[Row]:
    """The faults of a results file that have scripts, each script once, or the open findings of a database."""
    if findings.holds_findings(path):
        return [asdict(finding) for finding in findings.read(path).open if finding.program]
    return list({row["program"]: row for row in _faults(row for run in read_all(path) for row in run.rows)}.values())


def replay(rows: Iterable[Row]) -> Iterator[tuple[Row, Ended]]:
    """Each row with how its script ended: with status 1 if and only if it shows its fault. See ``script_process`` on forks."""
    with tempfile.TemporaryDirectory() as directory:
        for row in rows:
            for _ in range(TRIES):
                ended = script_process.run(row["program"], Path(directory), SECONDS)
                if ended.status != 0:
                    break
            yield row, ended


def replay_files(paths: Iterable[Path], say: Callable[[str], object]) -> bool:
    """Replay the scripts of conformance runs and of findings of soaks. Returns whether every script shows its fault.

    Raises InvalidOption for a file that cannot be read, or is neither.
    """
    try:
        found = [row for path in paths for row in _written(path)]
    except (OSError, ValueError) as error:
        raise InvalidOption(f"FILE: {error}; accepted are results of conformance runs, and findings of soaks") from error
    rows = standalone(found)
    say(f"{len(rows)} scripts, some seconds each on a busy machine")
    if len(found) > len(rows):
        say(f"{len(found) - len(rows)} more only print, because their laws measure more than they do; they are not run")
    gone = failed = 0
    missing: Counter[str] = Counter()
    for row, ended in replay(rows):
        if ended.status != 1:
            gone += 1
            failed += ended.status == ERROR
            missing.update(filter(None, [ended.missing]))
            say(f"{row['impl']}, law {row['law']}: status {ended.status}, expected 1\n{ended.output}{ended.errors}")
    others = f"; {failed} ended with another error, and show nothing" if failed else ""
    say(f"{len(rows) - gone} of {len(rows)} scripts show their fault{others}")
    where = "use a Python that has it, such as .nox/peers/bin/python, or set PYTHONPATH"
    for name, count in missing.most_common():
        say(f"{count} of the others found no module {name!r}: {where}")
    return bool(rows) and not gone
