"""A world of ranks on this machine: started once by ``torch.distributed.run``, it runs many programs.

The launcher chooses its ports, and ranks talk to the judge through a socket in a directory of its own, so that worlds do not
interfere. If a rank hangs or ends, or has gathered many threads of programs' process groups that are still held by something,
the whole world is ended, and the next program starts another.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import TypeVar

from conformance.distributed import rank as rank_module
from conformance.distributed.answer import Answer, Task, Unjudged, WorldEnded
from conformance.distributed.waiting import Processes, Waiting, is_crowded
from conformance.rows.results_file import ROOT

START_SECONDS = 300  # in which ranks import torch and its slowest modules
GRACE = 2.0  # seconds after the limit in which a rank can write its stack
LOOK, LONG = 0.2, 1.0  # seconds after which the judge looks at ranks that do not answer, and for which all of them have to wait
END_SECONDS = 10  # in which the launcher ends after its ranks
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
Received = TypeVar("Received")
DEEP = 12  # frames that are shown of a rank that hangs, at most


class World:
    """``size`` ranks, which start with the first program, on a type of device. Raises ValueError for a size below 1."""

    def __init__(self, size: int, *, seconds: float = 15.0, device: str = "cpu") -> None:
        if size < 1:
            raise ValueError(f"the number of ranks is {size}; it must be at least 1")
        self.size, self.seconds, self.grace, self.device = size, seconds, Task.grace, device
        self.started = 0  # so many worlds so far
        self.waited = False  # in the last run all ranks have certainly waited for each other, up to its end if it had none
        self._launcher: subprocess.Popen[bytes] | None = None
        self._ranks: dict[int, Connection] = {}
        self._pids: dict[int, int] = {}
        self._imported = {""}  # what ranks have imported, by the names in tasks
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        atexit.register(self.close)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, task: Task) -> list[Answer]:
        """The answers of all ranks, in their order. Raises WorldEnded if one does not answer, or ends.

        What a task is about is imported before its first program, so that an import that takes long is no program that hangs.
        """
        if self._launcher is None:
            self._start()
        task = replace(task, device=self.device, seconds=self.seconds, grace=self.grace)
        try:
            if task.subject not in self._imported:
                self._send(task.subject)
                self._received(START_SECONDS, _is_imported)
                self._imported.add(task.subject)
            self._send(task)
            answers = self._received(self.seconds, _loaded)
        except BaseException:
            self.close()
            raise
        if any(map(is_crowded, self._pids.values())):
            self.close()
        return answers

    def _send(self, message: Task | str) -> None:
        for connection in self._ranks.values():
            with suppress(BrokenPipeError):  # what is read next tells that it has ended
                connection.send(message)

    @contextmanager
    def limited(self, seconds: float, grace: float) -> Iterator[None]:
        """Other limits for the programs that run meanwhile."""
        before = self.seconds, self.grace
        self.seconds, self.grace = seconds, grace
        try:
            yield
        finally:
            self.seconds, self.grace = before

    def close(self) -> None:
        """End the ranks and the launcher, and remove what they wrote."""
        for pid in self._pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for connection in self._ranks.values():
            connection.close()
        if self._launcher is not None:
            self._end_launcher(self._launcher)
        if self._directory is not None:
            self._directory.cleanup()
        self._launcher = self._directory = None
        self._ranks, self._pids, self._imported = {}, {}, {""}

    @staticmethod
    def _end_launcher(launcher: subprocess.Popen[bytes]) -> None:
        """End it by SIGTERM, so that it also ends ranks whose process ids are not known here yet."""
        with suppress(ProcessLookupError):
            launcher.send_signal(signal.SIGTERM)
        try:
            launcher.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
            launcher.wait()

    def _start(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="reprise-ranks-")
        path, key = Path(self._directory.name), secrets.token_bytes(16)
        try:
            with Listener(str(path / "judge"), "AF_UNIX", backlog=self.size, authkey=key) as listener:
                self._launcher = self._launched(path, key)
                self.started += 1
                self._accept(listener, path)
        except BaseException:
            self.close()
            raise

    def _launched(self, path: Path, key: bytes) -> subprocess.Popen[bytes]:
        ours = {rank_module.ADDRESS: str(path / "judge"), rank_module.KEY: key.hex(), rank_module.TRACES: str(path)}
        threads = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")}
        paths = [str(ROOT), *filter(None, (str(Path(one or ".").resolve()) for one in sys.path))]
        environment = {**os.environ, **ours, **threads, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
        options = ["--standalone", f"--nproc-per-node={self.size}", "--monitor-interval=0.2", "-m", rank_module.__name__]
        with (path / "launcher.txt").open("wb") as told:  # a session of its own, so that the terminal interrupts only the judge
            return subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *options],
                env=environment, stdin=subprocess.DEVNULL, stdout=told, stderr=told, start_new_session=True,
            )  # fmt: skip

    def _accept(self, listener: Listener, path: Path) -> None:
        """Wait until every rank has connected."""
        assert self._launcher is not None
        end = time.monotonic() + START_SECONDS
        listener._listener._socket.settimeout(0.2)  # type: ignore[attr-defined]  # else accept() would wait for a rank that has ended
        while len(self._ranks) < self.size:
            if self._launcher.poll() is not None or time.monotonic() > end:
                text = (path / "launcher.txt").read_text(errors="replace")
                raise Unjudged(f"the ranks did not start\ntorch.distributed.run says:\n{text[-6000:]}")
            with suppress(TimeoutError):
                connection = listener.accept()
                rank, _, pid = connection.recv()
                self._ranks[rank], self._pids[rank] = connection, pid

    def _received(self, seconds: float, read: Callable[[bytes], Received]) -> list[Received]:
        """What all ranks send within a limit, in their order. Raises WorldEnded."""
        numbers = {connection: rank for rank, connection in self._ranks.items()}
        found: dict[int, Received] = {}
        end = time.monotonic() + seconds + GRACE
        looked, there = Waiting(LONG), Processes(frozenset(self._pids.values()), frozenset())
        self.waited = still = False
        while len(found) < self.size:
            waiting = [connection for connection, rank in numbers.items() if rank not in found]
            ready = wait(waiting, min(LOOK, max(0.0, end - time.monotonic())))
            if not ready and time.monotonic() < end:
                still = looked.is_certain(there)
                self.waited |= still
                continue
            if not ready:
                self.waited = still
                raise WorldEnded(self._standing([numbers[one] for one in waiting], seconds), hangs=True)
            for connection in ready:
                rank = numbers[connection]  # type: ignore[index]
                try:
                    found[rank] = read(connection.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, OSError):
                    raise WorldEnded(f"rank {rank} ended{self._status(rank)}", hangs=False) from None
        return [found[rank] for rank in range(self.size)]

    def _standing(self, behind: Sequence[int], seconds: float) -> str:
        """The stacks of ranks that have not answered."""
        assert self._directory is not None
        told = [f"no answer in {seconds:g} seconds from {_ranks(behind)} of {self.size}"]
        for rank in behind:
            text = (Path(self._directory.name) / f"{rank}.txt").read_text(errors="replace")
            frames = [f"  {one['file']}:{one['line']} in {one['name']}" for one in _FRAME.finditer(_main_thread(text))]
            told += [f"rank {rank}:", *(frames[:DEEP] or ["  it has not written its stack"])]
        return "\n".join(told)

    def _status(self, rank: int) -> str:
        """How a rank ended, as the launcher says."""
        assert self._launcher is not None
        assert self._directory is not None
        with suppress(subprocess.TimeoutExpired):
            self._launcher.wait(END_SECONDS)
        text = (Path(self._directory.name) / "launcher.txt").read_text(errors="replace")
        found = re.search(rf"exitcode\s*:\s*(-?\d+).*\(pid: {self._pids[rank]}\)", text)
        code = int(found[1]) if found else None
        if code is None:
            return ""
        return f" with status {code}" if code >= 0 else f" by {signal.Signals(-code).name}"


class Worlds:
    """Worlds of ``size`` ranks, and of more for laws that take more. Each starts with its first program.

    Raises ValueError for a size below 1.
    """

    def __init__(self, size: int, *, seconds: float = 15.0, device: str = "cpu") -> None:
        self.size, self.seconds, self.device = size, seconds, device
        self._there = {size: World(size, seconds=seconds, device=device)}

    def __enter__(self) -> Worlds:
        return self

    def __exit__(self, *_: object) -> None:
        for world in self._there.values():
            world.close()

    @property
    def started(self) -> int:
        """So many worlds so far, those that took the place of another included."""
        return sum(world.started for world in self._there.values())

    def of(self, ranks: int) -> World:
        """The world of a law that takes so many ranks at least."""
        size = max(self.size, ranks)
        if size not in self._there:
            self._there[size] = World(size, seconds=self.seconds, device=self.device)
        return self._there[size]


def _is_imported(data: bytes) -> bool:
    """Whether a rank has imported what it was told to. Raises Unjudged if that fails, though it can be imported here."""
    if error := pickle.loads(data):
        raise Unjudged(f"a rank could not import what is judged\n{error}")
    return True


def _loaded(data: bytes) -> Answer:
    """An answer. Raises Unjudged for a fault of the suite."""
    answer = pickle.loads(data)
    if not isinstance(answer, Answer):
        raise Unjudged(f"a rank could not run a program\n{answer}")
    return answer


def _main_thread(text: str) -> str:
    """What faulthandler wrote about the thread that ran the program: it comes last, with the newest call first."""
    return text.rpartition("most recent call first):\n")[2]


def _ranks(numbers: Sequence[int]) -> str:
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"
