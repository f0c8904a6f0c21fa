"""Takes each fork of the process that imports this out of the terminal's group, and lets it be interrupted.

Only one process imports this: the server from which sandboxes are forked, which :mod:`conformance.runs.interrupts` starts with
SIGINT blocked. Forks of its forks stay in their group, so that a sandbox ends with all that it started.
"""

from __future__ import annotations

import os
import signal

_detached = False


def _detach() -> None:
    global _detached
    if not _detached:
        _detached = True
        os.setpgid(0, 0)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops an interrupt that came before
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, handler)


os.register_at_fork(after_in_child=_detach)
