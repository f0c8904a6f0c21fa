"""Runs a script in a process of its own, forked so that torch is not imported again, and reports how it ended.

Call it in a process that has not started a thread of autograd: a fork has none of its parent's threads.
"""

from __future__ import annotations

import gc
import os
import runpy
import signal
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from conformance.reproducers.script_syntax import ends_what_hangs, frame

ERROR = 2  # the status of a script that raises, as it is if it is run alone
RUNNING: set[int] = set()  # processes of scripts, each the leader of its group


@dataclass(frozen=True)
class Ended:
    """How a script ended: its status, and what it wrote to standard output and standard error.

    The status is 1 only if the script's own comparison ended it. It is ERROR if the script raised, or if a module, the
    implementation or the program ended it with status 1. It is negative if a signal ended it, as when the time was over.
    ``missing`` is the name of a module that was not found, "" if all were.
    """

    status: int
    output: str = ""
    errors: str = ""
    missing: str = ""


def run(text: str, directory: Path, seconds: float) -> Ended:
    """Run a script, with its files in a directory. After so many seconds it is ended, with all processes it has started."""
    import torch._dynamo  # noqa: F401  # once, for all scripts; torch's checkpoint imports it at its first call

    script, written = directory / "script.py", {name: directory / name for name in ("output", "errors", "missing")}
    script.write_text(text, encoding="utf-8")
    for path in written.values():
        path.unlink(missing_ok=True)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # otherwise the fork would write the same again
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the process to be ended is known
    child = os.fork()
    if child == 0:
        _become(script, **written)
    RUNNING.add(child)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        status = _wait(child, seconds)
    finally:
        _end(child)
        RUNNING.discard(child)
    texts = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in written.items() if path.exists()}
    if status == 1 and "missing" not in texts and not ends_what_hangs(text):
        return Ended(ERROR, **texts | {"errors": "what is judged ended the process, so nothing was compared\n"})
    return Ended(status, **texts)


def end_all() -> None:
    """End the scripts that run now, with all that they have started."""
    for child in RUNNING:
        _end(child)


def _end(child: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def _wait(child: int, seconds: float) -> int:
    """Wait for a process, for so many seconds at most; its status, or minus the signal that ended it."""
    until = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.003)
    return os.waitstatus_to_exitcode(ended[1])


def _become(script: Path, output: Path, errors: Path, missing: Path) -> NoReturn:
    """Be the new process: run the script, then end. The file ``missing`` is there only if the script came to its end."""
    status, name = ERROR, ""
    gc.freeze()  # the collector would copy the memory of its parent
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = (open(number, "w", encoding="utf-8", closefd=False) for number in (1, 2))  # noqa: SIM115
    try:
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as ended:
        if _is_of_frame(ended.__traceback__, script):
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        else:
            traceback.print_exc()
    except BaseException as error:  # noqa: BLE001 - whatever a script raises is told by its status and its output
        name = (error.name or "") if isinstance(error, ModuleNotFoundError) else ""
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        missing.write_text(name, encoding="utf-8")
        os._exit(status)


def _is_of_frame(where: TracebackType | None, script: Path) -> bool:
    """Whether this was raised by the code after the program of a script, and not by a module, implementation or program."""
    *_, last = traceback.extract_tb(where)
    after = frame(script.read_text(encoding="utf-8"))
    begin = after[0].lineno if after else 0
    return last.filename == str(script) and (last.lineno or 0) >= begin
