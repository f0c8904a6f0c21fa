"""Runs the scripts of a results file again, each in a process of its own, and says which of them no longer show their fault.

Run as ``python -m conformance.replay FILE...``; status 0 exactly when every script ends with status 1, and 2 for
a file that cannot be read. Scripts that only print, and have no status of their own, are left out.
"""

from __future__ import annotations

import argparse
import os
import runpy
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from conformance import findings
from conformance.results_file import Row, read_all

SECONDS = 60
TRIES = 6  # of a script that shows nothing: threads do not always meet
FAULTS = ("diverges", "crashes", "hangs")


def standalone(rows: Iterable[Row]) -> list[Row]:
    """The rows of faults whose script measures what the law does, and says so by its status."""
    return [row for row in rows if row["verdict"] in FAULTS and "sys.exit(" in row["program"]]


def scripts(path: Path) -> list[Row]:
    """What can be replayed of a results file, or of the open findings of a database; raises as reading them does."""
    if findings.holds_findings(path):
        return [asdict(finding) for finding in findings.read(path).open if finding.replayable]
    rows = standalone(row for run in read_all(path) for row in run.rows)
    return list({row["program"]: row for row in rows}.values())


def replay(rows: Iterable[Row]) -> Iterator[tuple[Row, int, str]]:
    """Each row with the status and the output of its script. Forks: call it where no autograd thread has been started."""
    import torch._dynamo  # noqa: F401  # once, for all processes; torch's checkpoint imports it at its first call

    with tempfile.TemporaryDirectory() as directory:
        for number, row in enumerate(rows):
            script = Path(directory) / f"{number}.py"
            script.write_text(row["program"], encoding="utf-8")
            for _ in range(TRIES):
                status, output = _run(script)
                if status != 0:
                    break
            yield row, status, output


def _run(script: Path) -> tuple[int, str]:
    output = script.with_suffix(".txt")
    child = os.fork()
    if child == 0:
        _become(script, output)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), output.read_text(encoding="utf-8", errors="replace")


def _become(script: Path, output: Path) -> None:
    """What the new process does: the script, with its output in a file, and then nothing else."""
    status = 3
    signal.alarm(SECONDS)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - whatever a script raises is told by its status and its output
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m conformance.replay", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of conformance runs, findings of soaks")
    try:
        rows = [row for path in parser.parse_args(arguments).files for row in scripts(path)]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{len(rows)} scripts, some seconds each on a busy machine\n")
    sys.stdout.flush()
    gone = 0
    for row, status, output in replay(rows):
        if status != 1:
            gone += 1
            sys.stdout.write(f"{row['impl']}, law {row['law']}: status {status}, 1 is due\n{output}\n")
    sys.stdout.write(f"{len(rows) - gone} of {len(rows)} scripts show their fault\n")
    return 1 if gone or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
