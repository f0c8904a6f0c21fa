"""Ranks that only wait for each other are told from slow ones, as far as the system says what threads do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.distributed import waiting
from conformance.distributed.waiting import POLLING, SECONDS, Processes, Waiting, processes

pytestmark = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not tell of threads")
WAITS = "threading.Event().wait()"
POLLS = "threading.Thread(target=polls, daemon=True).start(); threading.Event().wait()"
HEAD = f"""
import ctypes, sys, threading, time
def polls():
    ctypes.CDLL(None).prctl(15, b{POLLING!r}, 0, 0, 0)  # PR_SET_NAME
    while True:
        time.sleep(0.01)
def spins():
    while True:
        pass
print("begins", flush=True)
"""


@contextmanager
def running(text: str) -> Iterator[int]:
    """A process that executes this, by its id."""
    with subprocess.Popen([sys.executable, "-c", HEAD + text], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


def is_found(seconds: float, *pids: int, parts: tuple[int, ...] = ()) -> bool:
    """Whether these processes are found to wait within some time."""
    there, end = Processes(frozenset(pids), frozenset(parts)), time.monotonic() + seconds
    looked = Waiting()
    while time.monotonic() < end:
        if looked.is_certain(there):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("text", [WAITS, POLLS])
def test_a_process_that_waits_is_found(text: str) -> None:
    with running(text) as pid:
        assert is_found(30, pid)


@pytest.mark.parametrize(
    "text",
    [
        "spins()",
        "while True: time.sleep(0.04)",
        f"threading.Thread(target=spins, daemon=True).start(); {WAITS}",
        "while True: threading.Thread(target=time.sleep, args=(0.01,)).start(); time.sleep(0.03)",
    ],
)
def test_a_process_with_a_thread_that_runs_now_and_then_is_not(text: str) -> None:
    with running(text) as pid, running(WAITS) as other:
        assert not is_found(10 * SECONDS, pid, other)


def test_the_first_thread_of_one_that_looks_itself_does_not_count() -> None:
    with running("spins()") as pid, running(WAITS) as other:
        assert is_found(30, other, parts=(pid,))


def test_what_was_sent_may_be_still_to_receive_until_gloo_has_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = [5]
    threads = {1: ("python", "S", 7), 2: (POLLING, "R", 5)}
    monkeypatch.setattr(Processes, "threads", lambda _: {**threads, 2: (POLLING, "R", polls[-1])})
    looked, one = Waiting(), Processes(frozenset({1}), frozenset())
    assert not looked.is_certain(one)
    time.sleep(1.1 * SECONDS)
    polls.append(5 + waiting.POLLS - 1)
    assert not looked.is_certain(one)
    polls.append(5 + waiting.POLLS)
    assert looked.is_certain(one)


def test_one_that_has_ended_is_not_said_to_wait() -> None:
    with running(WAITS) as pid:
        assert is_found(30, pid)
    assert not is_found(2 * SECONDS, pid)


def test_this_one_and_those_that_have_ended_are_looked_at_without_their_first_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 10)
    assert processes({0: 10, 1: 11, 2: 12}, [0, 2]) == Processes(frozenset({11}), frozenset({10, 12}))
