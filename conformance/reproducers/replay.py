"""Runs the scripts of a results file again, each in a process of its own, and says which of them no longer show their fault.

Run as ``python -m conformance.reproducers.replay FILE...``; status 0 exactly when every script shows its fault, and 2 for a
file that cannot be read. A script shows its fault when it ends with status 1 and has printed what it compared. Those that
only print, since the law measures more than they do, have no status of their own: they are counted, and not run.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from conformance.reports.results_file import Row, read_all
from conformance.runs.option_values import readable
from conformance.soak import findings

SECONDS = 60
TRIES = 20  # of a script that shows nothing: threads do not always meet
FAULTS = ("diverges", "crashes", "hangs")
OTHER = 3  # the status of a script that raised, or ended with 1 and compared nothing
NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '([^']+)'")
COMPARED = re.compile(r"\b(due|expected|plain)\b")


def standalone(rows: Iterable[Row]) -> list[Row]:
    """The rows of faults whose script measures what the law does, and says so by its status."""
    return [row for row in _faults(rows) if "sys.exit(" in row["program"]]


def _faults(rows: Iterable[Row]) -> list[Row]:
    return [row for row in rows if row["verdict"] in FAULTS and row["program"]]


def scripts(path: Path) -> list[Row]:
    """What can be replayed of a results file, or of the open findings of a database; raises as reading them does."""
    return standalone(_written(path))


def _written(path: Path) -> list[Row]:
    """The faults of a results file that have scripts, each script once, or the open findings of a database."""
    if findings.holds_findings(path):
        return [asdict(finding) for finding in findings.read(path).open if finding.program]
    return list({row["program"]: row for row in _faults(row for run in read_all(path) for row in run.rows)}.values())


def replay(rows: Iterable[Row]) -> Iterator[tuple[Row, int, str]]:
    """Each row with the status and the output of its script; the status is 1 where it shows its fault, and only there.

    Forks: call it where no autograd thread has been started.
    """
    import torch._dynamo  # noqa: F401  # once, for all processes; torch's checkpoint imports it at its first call

    with tempfile.TemporaryDirectory() as directory:
        for number, row in enumerate(rows):
            script = Path(directory) / f"{number}.py"
            script.write_text(row["program"], encoding="utf-8")
            for _ in range(TRIES):
                status, printed, errors = _run(script)
                if status != 0:
                    break
            if status == -signal.SIGALRM and row["verdict"] == "hangs":  # of older scripts, which do not end by themselves
                status, printed = 1, f"{printed}no answer in {SECONDS} seconds, as is due\n"
            elif status == 1 and not compares(row["program"], printed):
                status, errors = OTHER, f"{errors}status 1, and nothing is compared\n"
            yield row, status, printed + errors


def compares(script: str, printed: str) -> bool:
    """Whether what a script has printed says what the implementation did, and what it should have done."""
    name = script.removeprefix('"""').partition(", ")[0]
    return name in printed and COMPARED.search(printed) is not None


def _run(script: Path) -> tuple[int, str, str]:
    """The status of a script, what it printed, and its errors."""
    outputs = [script.with_suffix(suffix) for suffix in (".out", ".err")]
    child = os.fork()
    if child == 0:
        _become(script, outputs)
    _, status = os.waitpid(child, 0)
    printed, errors = (output.read_text(encoding="utf-8", errors="replace") for output in outputs)
    return os.waitstatus_to_exitcode(status), printed, errors


def _become(script: Path, outputs: Sequence[Path]) -> None:
    """What the new process does: the script, with its output in files, and then nothing else."""
    status = OTHER
    signal.alarm(SECONDS)
    for number, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
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
    parser = argparse.ArgumentParser(prog="python -m conformance.reproducers.replay", description=__doc__.splitlines()[0])
    parser.add_argument(
        "files", nargs="+", type=readable, metavar="FILE", help="results of conformance runs, findings of soaks"
    )
    try:
        found = [row for path in parser.parse_args(arguments).files for row in _written(path)]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"argument FILE: {error}; accepted are results of conformance runs, and findings of soaks\n")
        return 2
    rows = standalone(found)
    sys.stdout.write(f"{len(rows)} scripts, some seconds each on a busy machine\n")
    if len(found) > len(rows):
        sys.stdout.write(f"{len(found) - len(rows)} more only print, for their laws measure more: they are not run\n")
    sys.stdout.flush()
    gone = failed = 0
    missing: Counter[str] = Counter()
    for row, status, output in replay(rows):
        if status != 1:
            gone += 1
            failed += status == OTHER
            missing.update(NO_MODULE.findall(output)[-1:])
            sys.stdout.write(f"{row['impl']}, law {row['law']}: status {status}, 1 is due\n{output}\n")
    ended = f"; {failed} ended with another error, and show nothing" if failed else ""
    sys.stdout.write(f"{len(rows) - gone} of {len(rows)} scripts show their fault{ended}\n")
    where = "run this by a Python that has it, as .nox/peers/bin/python, or with PYTHONPATH"
    for name, count in missing.most_common():
        sys.stdout.write(f"{count} that do not have found no module {name!r}: {where}\n")
    return 1 if gone or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
