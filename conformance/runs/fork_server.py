"""Starts the process from which sandboxes are forked, such that Ctrl-C ends neither it nor them.

A terminal sends SIGINT to every process of its foreground group. The server has SIGINT blocked from the start, since it
would print a traceback if it was interrupted while it imports torch. ``detached_forks`` is what it does for its forks.
"""

from __future__ import annotations

import multiprocessing
import signal
from multiprocessing import forkserver, resource_tracker

from conformance.judging import sandbox_worker

PRELOADED = (sandbox_worker.__name__, "conformance.runs.detached_forks")


def start() -> None:
    """Start the server if it does not run."""
    multiprocessing.get_context("forkserver").set_forkserver_preload([*PRELOADED])
    resource_tracker.ensure_running()  # first, since starting it unblocks SIGINT
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
