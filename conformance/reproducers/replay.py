"""Runs the scripts of a results file again, each in a process of its own, and says which of them no longer show their fault.

A script shows its fault when what comes after its program ends it with status 1, which no module,
implementation or program can do in its place. Those that only print, since the law measures more than they do, have no
status of their own: they are counted, and not run.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from conformance.reproducers.script_syntax import ends_what_hangs, frame, has_status
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import Row, read_all
from conformance.soak import findings

SECONDS = 60
TRIES = 20  # of a script that shows nothing: threads do not always meet
FAULTS = ("diverges", "crashes", "hangs")
OTHER = 3  # the status of a script that raised, or was ended with 1 by what it judges


@dataclass(frozen=True)
class Ended:
    """How a script ended: its status, its output and errors, and the name of a module that was not found, "" if none.

    ``cut_off``: the process ended before the script did, by a signal or ``os._exit``.
    """

    status: int
    output: str
    missing: str = ""
    cut_off: bool = False


def standalone(rows: Iterable[Row]) -> list[Row]:
    """The rows of faults whose script measures what the law does, and says so by its status."""
    return [row for row in _faults(rows) if has_status(row["program"])]


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


def replay(rows: Iterable[Row]) -> Iterator[tuple[Row, Ended]]:
    """Each row with how its script ended; the status is 1 where it shows its fault, and only there.

    Forks: call it where no autograd thread has been started.
    """
    import torch._dynamo  # noqa: F401  # once, for all processes; torch's checkpoint imports it at its first call

    with tempfile.TemporaryDirectory() as directory:
        for number, row in enumerate(rows):
            script = Path(directory) / f"{number}.py"
            script.write_text(row["program"], encoding="utf-8")
            for _ in range(TRIES):
                ended = _run(script)
                if ended.status != 0:
                    break
            if ended.status == -signal.SIGALRM and row["verdict"] == "hangs":  # an older script
                ended = Ended(1, f"{ended.output}no answer in {SECONDS} seconds, as is due\n")
            elif ended.status == 1 and ended.cut_off and not ends_what_hangs(row["program"]):
                ended = Ended(OTHER, f"{ended.output}what is judged has ended the process, and nothing is compared\n")
            yield row, ended


def _run(script: Path) -> Ended:
    """Run a script in a process of its own."""
    outputs = [script.with_suffix(suffix) for suffix in (".out", ".err")]
    end = script.with_suffix(".end")
    end.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _become(script, outputs, end)
    _, status = os.waitpid(child, 0)
    output = "".join(one.read_text(encoding="utf-8", errors="replace") for one in outputs)
    missing = json.loads(end.read_text(encoding="utf-8")) if end.exists() else ""
    return Ended(os.waitstatus_to_exitcode(status), output, missing, cut_off=not end.exists())


def _become(script: Path, outputs: Sequence[Path], end: Path) -> NoReturn:
    """What the new process does: the script, with its output in files, and then nothing else.

    If the script ends by itself, with an error or not, the file ``end`` is written: the name of a module that was not found.
    """
    status, missing = OTHER, ""
    signal.alarm(SECONDS)
    for number, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    try:
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as raised:
        if _is_of_frame(raised.__traceback__, script):
            status = int(raised.code or 0)
        else:
            traceback.print_exc()
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is told by its status and its output
        missing = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        end.write_text(json.dumps(missing), encoding="utf-8")
        os._exit(status)


def _is_of_frame(where: TracebackType | None, script: Path) -> bool:
    """Whether what comes after the program of a script has raised this, and no module, implementation or program."""
    *_, last = traceback.extract_tb(where)
    after = frame(script.read_text(encoding="utf-8"))
    begin = after[0].lineno if after else 0
    return last.filename == str(script) and (last.lineno or 0) >= begin


def replay_files(paths: Iterable[Path], say: Callable[[str], object]) -> bool:
    """Replay the scripts of results of conformance runs and of findings of soaks; whether every script shows its fault.

    Raises InvalidOption for a file that cannot be read, or is neither.
    """
    try:
        found = [row for path in paths for row in _written(path)]
    except (OSError, ValueError) as error:
        raise InvalidOption(f"FILE: {error}; accepted are results of conformance runs, and findings of soaks") from error
    rows = standalone(found)
    say(f"{len(rows)} scripts, some seconds each on a busy machine")
    if len(found) > len(rows):
        say(f"{len(found) - len(rows)} more only print, for their laws measure more: they are not run")
    gone = failed = 0
    missing: Counter[str] = Counter()
    for row, ended in replay(rows):
        if ended.status != 1:
            gone += 1
            failed += ended.status == OTHER
            missing.update(filter(None, [ended.missing]))
            say(f"{row['impl']}, law {row['law']}: status {ended.status}, 1 is due\n{ended.output}")
    others = f"; {failed} ended with another error, and show nothing" if failed else ""
    say(f"{len(rows) - gone} of {len(rows)} scripts show their fault{others}")
    where = "run this by a Python that has it, as .nox/peers/bin/python, or with PYTHONPATH"
    for name, count in missing.most_common():
        say(f"{count} that do not have found no module {name!r}: {where}")
    return bool(rows) and not gone
