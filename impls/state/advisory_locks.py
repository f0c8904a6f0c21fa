"""Advisory locks: they save threads from doing work twice, and results are right without them.

So a thread gives up waiting rather than risk a deadlock. A thread that is inside of a recomputation does not wait at all, since
others may be waiting for it; and no thread waits for one that sleeps, since that may be waiting for it.
"""

from __future__ import annotations

import os
import time

from impls.state import threads
from impls.state.process_lock import LIMIT
from impls.state.restoration import current_restoration

_holders: dict[int, threads.Thread] = {}

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_holders.clear)


def acquire(what: int) -> bool:
    """Wait until no other thread holds it, if waiting is safe. Returns whether this thread has it now, and must release it."""
    this = threads.current_thread()
    return (what not in _holders and _holders.setdefault(what, this) is this) or (
        current_restoration() is None and _wait(what, this)
    )


def release(what: int) -> None:
    """Let another one begin."""
    _holders.pop(what, None)


def _wait(what: int, this: threads.Thread) -> bool:
    deadline = time.monotonic() + LIMIT
    while (other := _holders.setdefault(what, this)) is not this:
        if other.sleeps_for(this) is not None or time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True
