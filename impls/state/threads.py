"""Threads as others see them: which of them sleep, and for how long."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

LONG, LONGER = 1.0, 10.0  # seconds of sleep
Sleep = tuple[int, ...]  # how often the thread had been switched out when it fell asleep, by itself and by others


class Thread:
    """A thread that others may have to wait for."""

    __slots__ = ("ident", "native", "patient", "since", "sleep")

    def __init__(self) -> None:
        self.ident, self.native = threading.get_ident(), threading.get_native_id()
        self.sleep: Sleep | None = None  # as it was last seen, and since when it has been that
        self.since = 0.0
        self.patient = False  # on a second attempt: it, and who waits for it, waits longer

    def asleep(self) -> Sleep | None:
        """Its sleep, None while it is awake. Two equal answers mean that it has not run in between.

        Source: proc(5), the file ``status`` of a task. Where there is no such file, which is elsewhere than on Linux, nobody
        can tell, and the answer is None.
        """
        try:
            lines = Path(f"/proc/self/task/{self.native}/status").read_text().splitlines()
        except OSError:
            return None
        fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        switches = tuple(int(count) for name, count in fields.items() if name.endswith("ctxt_switches"))
        return switches if fields.get("State", "").startswith("S") and switches else None

    def sleeps_for(self, other: Thread) -> Sleep | None:
        """Its sleep, if it is likely to last until the other one goes on: it joins that, or has slept for long already."""
        now, sleep = time.monotonic(), self.asleep()
        if sleep is None or sleep != self.sleep:
            self.sleep, self.since = sleep, now
        if sleep is None:
            return None
        patient = self.patient or other.patient
        is_long = now - self.since >= (LONGER if patient else LONG)
        return sleep if is_long or (not patient and self._joins(other.ident)) else None

    def _joins(self, other: int) -> bool:
        with _without_collector():
            frame = sys._current_frames().get(self.ident)
            for _ in range(2):  # join itself, or the method that it waits in
                if frame is not None and frame.f_code is threading.Thread.join.__code__:
                    return bool(frame.f_locals["self"].ident == other)
                frame = None if frame is None else frame.f_back
        return False


def is_under_way(call: FrameType | None) -> bool:
    """Whether a call is still being executed, on whatever thread.

    A frame that is cannot be cleared, and for one that is over nothing is lost. It must be a function's: a generator that waits
    would be closed. The thread's frames are not walked: that makes
    objects, which may start the garbage collector, and thereby let the thread leave the frame that is being looked at.
    """
    if call is None:
        return False
    try:
        call.clear()
    except RuntimeError:
        return True
    return False


@contextmanager
def _without_collector() -> Iterator[None]:
    """No garbage collection meanwhile: it may let another thread run, whose frames are being read."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class _Local(threading.local):
    def __init__(self) -> None:
        self.thread = Thread()


_local = _Local()


def current_thread() -> Thread:
    """The calling thread."""
    return _local.thread


def _after_fork() -> None:
    global _local
    _local = _Local()  # the kernel knows the thread by another number now


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
