"""What is being done by some thread, so that others wait for it rather than do the same at the same time.

It is for what is better done by one at a time, and right in any case: so nobody waits in vain. A recomputation does not
wait at all, as others may be waiting for it; neither does anybody for a thread that sleeps, which may be waiting for them.
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
    """Wait until nobody else does it. Whether it may be said to be begun by this thread; then it is to be ended."""
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
