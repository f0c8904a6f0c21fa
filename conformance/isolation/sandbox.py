"""An implementation in a process of its own: that it dies, hangs or takes too much memory is a verdict, and the run goes on.

Before each program the process sends the row to be written if it dies of that program. After a death the next law gets a new
process. Processes are forked from a server that has imported torch and run no backward, so a new one costs little, and each
initialises accelerators itself.
"""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import re
import resource
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from conformance.isolation.sandbox_worker import CUT_OFF, Setting, work
from conformance.isolation.shared_programs import pack
from conformance.isolation.smoke_check import Smoke
from conformance.judging.causes import shortened
from conformance.judging.explorer import Explorer
from conformance.judging.law import LAWS, Law
from conformance.judging.result import Result, as_declared
from conformance.judging.verdicts import Verdict
from conformance.reproducers.script import hanging
from impls import Implementation

GRACE = 5  # seconds to wait after the alarm, to which only Python code reacts
WHOLE = 30  # seconds in which a message that has begun must be complete
QUIET = 600  # seconds without a message, in which a process may draw programs or compare
GIB = 2**30
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')


class Died(Exception):
    """A process ended, or had to be ended, before it answered."""

    def __init__(self, verdict: Verdict, detail: str) -> None:
        super().__init__(detail)
        self.verdict, self.detail = verdict, detail


def _elsewhere(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("this implementation is judged in a process of its own, and is not in this one")


class Contained:
    """Judges one implementation by laws in a process of its own, and starts a new one if that dies."""

    def __init__(self, setting: Setting, shared: Explorer | None = None) -> None:
        self.setting = setting
        self.shared = shared  # what draws programs for other implementations, too
        self.process: Any = None
        self.connection: Any = None
        self.will: tuple[str, dict[str, Any]] | None = None
        self.after = ""
        self.asked = False  # whether this process, or one before it, was asked anything
        atexit.register(self.close)

    @functools.cached_property
    def implementation(self) -> Implementation:
        """The implementation's record; what it judges cannot be called here. Raises ValueError if it cannot be loaded."""
        try:
            fields: dict[str, Any] = self._start()
        except (Died, RuntimeError) as dead:
            raise ValueError(f"{self.setting.name!r}: the process that was to load it {dead}") from dead
        subject = "checkpoint" if fields["kind"] == "checkpoint" else "provides"
        return Implementation(**{**fields, subject: _elsewhere})

    def smoke(self) -> Smoke:
        """As :func:`conformance.isolation.smoke_check.smoke`. A process that dies is a fault or warning, as an error is."""
        try:
            needed = self._ask("smoke", False)
        except Died as dead:
            return Smoke(
                f"{self.setting.name} cannot be judged: on the smallest programs of its kind the process {dead.detail}"
            )
        try:
            return needed if needed.fault else self._ask("smoke", True)
        except Died as dead:
            return Smoke("", (f"with arguments by keyword, or that are no tensors, the process {dead.detail}",))

    def hold(self, law: Law, claims: Implementation) -> dict[str, Any]:
        """The row of a law, by the claims of this or another implementation. A hang must show twice, as in ``explorer``."""
        modules = sorted({one.check.__module__ for one in (law, *LAWS.values())})  # some laws combine the others
        claimed = claims.name, claims.capabilities, dict(claims.known)
        started = time.perf_counter()
        with tempfile.NamedTemporaryFile() as drawn:  # a process that does not read could block a long message
            drawn.write(pack(self.shared, law, claims) if self.shared else b"")
            drawn.flush()
            for last in (False, True):
                try:
                    row = self._held(modules, law.name, drawn.name, *claimed)
                except Died as dead:
                    row = self._dead(law, claims, dead)
                    if dead.verdict is Verdict.HANGS and not last:
                        continue
                break
        self.after = law.name
        return {**row, "seconds": round(time.perf_counter() - started, 3)}

    def close(self) -> None:
        """End the process, and what it started."""
        if self.process is not None:
            self._end(signal.SIGKILL)

    def _held(self, *question: Any) -> dict[str, Any]:
        """The row of a law. If it proves nothing, a new process is asked, as earlier laws may have changed this one."""
        again = self.process is not None and self.asked
        row = self._ask("hold", *question)
        if again and row["verdict"] == "agrees" and row["detail"]:
            self.close()
            row = self._ask("hold", *question)
        return row

    def _dead(self, law: Law, claims: Implementation, dead: Died) -> dict[str, Any]:
        """The row that the process sent in case it dies, completed."""
        what, row = self.will or ("", {})
        if what == "shrinking":
            return {**row, "detail": f"{row['detail']}; while this was shrunk the process {dead.detail}"}
        if what == "diverged":
            counts = Counter(row["counts"]) + Counter({str(dead.verdict): 1})
            detail = f"{row['detail']}; in another case the process {dead.detail}"
            return {**row, "counts": dict(sorted(counts.items())), "cases": row["cases"] + 1, "detail": detail}
        expected = Verdict(claims.expected(law.name, law.needs))
        as_it_is = as_declared(self.implementation, dead.verdict, expected)
        if what == "dying":
            counts = Counter(row["counts"]) - Counter(["crashes"]) + Counter([str(dead.verdict)])
            told = f"the process {dead.detail}"
            cause = shortened(told).words
            new = {"verdict": str(dead.verdict), "detail": told, "cause": cause, "effect": "", "as_declared": as_it_is}
            if dead.verdict is Verdict.HANGS:
                new["program"] = hanging(row["program"], self.implementation, self.setting.device)
            return {**row, **new, "counts": dict(sorted(counts.items()))}
        when = (
            f"before any program of this law ran{f', after law {self.after}' if self.after else ''}, the process {dead.detail}"
        )
        return Result(
            law=law,
            implementation=self.implementation,
            device=self.setting.device,
            expected=expected,
            verdict=dead.verdict,
            counts=Counter({dead.verdict: 1}),
            detail=when,
            program=None,
            vacuous="",
            seconds=0.0,
            cause=shortened(when),
        ).row()

    def _ask(self, *question: Any) -> Any:
        """The answer. If a process that was asked before fails, for example for want of files, a new one is asked."""
        again, self.asked = self.process is not None and self.asked, True
        if self.process is None:
            self._start()
        self.will = None
        self.base = _resident(self.process.pid)
        with suppress(BrokenPipeError):  # reading the answer will report how it ended
            self.connection.send(question)
        try:
            return self._answer()
        except RuntimeError:
            if again:
                return self._ask(*question)
            raise

    def _start(self) -> Any:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([work.__module__])
        self.connection, its = context.Pipe()
        descriptor, self.traces = tempfile.mkstemp(suffix=".txt")
        os.close(descriptor)
        process = context.Process(target=work, args=(its, self.setting, self.traces))
        process.start()
        self.process = process
        its.close()
        self.base = _resident(self.process.pid)
        return self._answer()

    def _answer(self) -> Any:
        """The answer of the process. Raises Died, ValueError if it cannot load, and RuntimeError for a fault of the suite."""
        limit, since = 0, time.monotonic()
        while True:
            if self.connection.poll(0.05):
                try:
                    what, *told = self._received()
                except (EOFError, OSError):
                    raise self._ended() from None
                except Exception as error:  # whatever reading garbage raises
                    self._end(signal.SIGKILL)
                    raise Died(Verdict.CRASHES, "wrote into its connection to the suite") from error
                since = time.monotonic()
                if what == "answer":
                    return told[0]
                if what in ("refused", "error"):
                    self.close()
                    if what == "error":
                        raise RuntimeError(told[0])
                    raise ValueError(told[0]) from (ModuleNotFoundError() if told[1] else None)
                limit = told[0] if what == "limit" else limit
                self.will = (told[0], told[1]) if what == "will" else self.will
            elif not self.process.is_alive() and not self.connection.poll(0):
                raise self._ended()  # its child processes may still hold the connection
            self._check_limits(limit, time.monotonic() - since)

    def _received(self) -> Any:
        """The message that has begun. Raises ValueError if it does not end, as garbage may announce any length."""
        late = threading.Event()
        with socket.socket(fileno=os.dup(self.connection.fileno())) as line:

            def cut() -> None:
                late.set()
                line.shutdown(socket.SHUT_RDWR)  # so that reading ends, even if others hold the other end

            watch = threading.Timer(WHOLE, cut)
            watch.start()
            try:
                return self.connection.recv()
            except (EOFError, OSError):
                if late.is_set():
                    raise ValueError(f"a message has not come to its end in {WHOLE} seconds") from None
                raise
            finally:
                watch.cancel()
                watch.join()

    def _check_limits(self, limit: int, silent: float) -> None:
        if _resident(self.process.pid) - self.base > self.setting.memory * GIB:
            self._end(signal.SIGKILL)
            raise Died(Verdict.CRASHES, f"took more than {self.setting.memory:g} GiB of memory")
        if silent > (limit + GRACE if limit else QUIET):
            where = self._end(signal.SIGABRT)
            raise Died(Verdict.HANGS, f"gave no answer in {limit or QUIET} seconds, nor to the alarm{where}")

    def _ended(self) -> Died:
        """How the process ended by itself."""
        self.process.join(1)
        code = self.process.exitcode
        where = self._end(signal.SIGKILL)
        if code in (None, CUT_OFF):
            return Died(Verdict.CRASHES, "closed its connection to the suite")
        how = f"ended with status {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        return Died(Verdict.CRASHES, how + where)

    def _end(self, by: signal.Signals) -> str:
        """End the process and what it started. Returns where it was at that moment, "" if unknown."""
        for number in (by, signal.SIGKILL):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)
            self.process.join(1)
        self.process.kill()  # it may have ended up in another group
        self.process.join()
        self.connection.close()
        self.process = None
        trace = Path(self.traces)
        frames = list(FRAME.finditer(trace.read_text(errors="replace")))
        trace.unlink()
        return f", in {frames[0]['name']} ({frames[0]['file']}, line {frames[0]['line']})" if frames else ""


def _resident(pid: int) -> int:
    """The bytes of memory that a process has; 0 if the system does not say, so that there is no limit."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0
