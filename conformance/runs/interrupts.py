"""What Ctrl-C does to a run: the first one ends judging, the second one everything, and neither prints a traceback.

A terminal sends SIGINT to every process of its foreground group, including the workers of xdist and the server from which
sandboxes are forked. Both are started with SIGINT blocked, because they would print a traceback while they import torch.
A worker unblocks it once pytest handles it. The server keeps it blocked, and ``detached_forks`` unblocks it in the forks.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from typing import NoReturn

from conformance.isolation import sandbox_worker

PRELOADED = (sandbox_worker.__name__, "conformance.runs.detached_forks")
BY_SIGNAL = 128 + signal.SIGINT  # the status that a shell reports of a command that an interrupt ended
_first_came = threading.Event()


@contextmanager
def blocked() -> Iterator[None]:
    """Block SIGINT here and in processes that are started inside; one that comes in between takes effect afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock() -> None:
    """Unblock SIGINT in a process that was started with it blocked. Raises KeyboardInterrupt if one came before."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def start_fork_server() -> None:
    """Start the server from which sandboxes are forked, unless it is running."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED])
    resource_tracker.ensure_running()  # first, since starting it unblocks SIGINT
    with blocked():
        forkserver.ensure_running()


def end_at_second(clean_up: Callable[[], None]) -> Callable[[], None]:
    """After a first interrupt, let a second one clean up and end this process. Returns a function that undoes this."""

    def end(*_: object) -> NoReturn:
        with suppress(Exception):  # whatever fails, nobody is left to report it to
            clean_up()
        os._exit(BY_SIGNAL)

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, end)
        _first_came.set()
        until_end.enter_context(_reports_no_interrupt())
        raise KeyboardInterrupt

    def restore() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _first_came.clear()
        until_end.close()

    until_end = ExitStack()

    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not heeds or threading.current_thread() is not threading.main_thread():
        return lambda: None
    signal.signal(signal.SIGINT, interrupt)
    return restore


@contextmanager
def _reports_no_interrupt() -> Iterator[None]:
    """Keep Python from reporting a KeyboardInterrupt that came where it must drop one: in a finalizer or a callback of gc.

    pytest would show its traceback as a warning. Where code is judged, ``not_lost`` raises it again. The controller of xdist
    judges nothing; its workers, which a terminal interrupts, too, end it.
    """
    before = sys.unraisablehook

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if unraisable.exc_type is not KeyboardInterrupt:
            before(unraisable)

    sys.unraisablehook = report
    try:
        yield
    finally:
        if sys.unraisablehook is report:  # pytest may have restored an earlier one already
            sys.unraisablehook = before


@contextmanager
def not_lost() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if the user's came inside, whatever the code inside has made of it.

    Programs may catch it, Hypothesis may raise an AssertionError in its place, and Python drops it in a callback of gc.
    """
    try:
        yield
    finally:
        if _first_came.is_set():
            raise KeyboardInterrupt
