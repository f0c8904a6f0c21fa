"""Whether ranks only wait for each other, or have too many threads, as Linux tells; elsewhere that is never said.

A rank that waits and one that is slow, or that a busy machine holds up, are told apart: the slow one's threads run, or want to.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
SECONDS = 0.1  # in which no thread may run, if nothing else is said
POLLS = 2  # that each thread of gloo that looks for what was sent must have made meanwhile: the first may have begun before
POLLING = "gloo_tcp_loop"  # its name
ASLEEP = "S"  # it waits for something, and not for a processor or a disk
MOST_THREADS = 40  # of a rank between two programs: a few are its own, and each group that is still there has three
Thread = tuple[str, str, int]  # its name, its state, and how often it began to run


@dataclass(frozen=True)
class Processes:
    """Processes whose threads are looked at: all of those in ``whole``, all but the first of those in ``parts``."""

    whole: frozenset[int]
    parts: frozenset[int]

    def threads(self) -> dict[int, Thread]:
        """Their threads. Raises OSError if this system does not tell, or one of them ends meanwhile."""
        every = ((int(one.name), one) for pid in self.whole | self.parts for one in (PROC / str(pid) / "task").iterdir())
        return {number: _thread(path) for number, path in every if number not in self.parts}


def _thread(path: Path) -> Thread:
    """A thread by its directory there."""
    name, _, rest = (path / "stat").read_text(encoding="utf-8", errors="replace").partition("(")[2].rpartition(")")
    times = (path / "schedstat").read_text(encoding="utf-8").split()[2]
    return name, rest.split()[0], int(times)


class Waiting:
    """Whether processes wait: for some time no thread of theirs has run, and nothing that was sent is still to be received."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.before: tuple[Processes, dict[int, Thread]] | None = None
        self.polled: dict[int, int] = {}
        self.since = 0.0

    def is_certain(self, processes: Processes) -> bool:
        """Look at the threads, as was done some moments ago; the first looks say no."""
        try:
            there = processes.threads()
        except (OSError, IndexError, ValueError):
            self.before = None
            return False
        polled = {number: times for number, (name, _, times) in there.items() if name == POLLING}
        others = {number: one for number, one in there.items() if number not in polled}
        now = processes, others
        if now != self.before or polled.keys() != self.polled.keys() or not _asleep(others.values()):
            self.before, self.polled, self.since = now, polled, time.monotonic()
            return False
        is_late = time.monotonic() - self.since >= self.seconds
        return is_late and all(polled[one] >= times + POLLS for one, times in self.polled.items())


def _asleep(threads: Iterable[Thread]) -> bool:
    return all(state == ASLEEP for _, state, _ in threads)


def processes(pids: dict[int, int], ended: Iterable[int]) -> Processes:
    """Those of ranks; of these the ``ended`` ones, and this one, look at the others with their first thread."""
    parts = frozenset(pids[rank] for rank in ended) | {os.getpid()}
    return Processes(frozenset(pids.values()) - parts, parts)


def is_crowded(pid: int) -> bool:
    """Whether a rank has threads of process groups that are not let go of, which slow down all that it runs."""
    try:
        return len([*(PROC / str(pid) / "task").iterdir()]) > MOST_THREADS
    except OSError:
        return False
