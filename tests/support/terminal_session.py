"""A command as a user runs it: in a session of its own, on a pseudo-terminal, whose Ctrl-C interrupts the whole group."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

PATIENCE = 600  # seconds; a command that is not at its end by then never will be
# Leads the session, as a shell does: the command is the group in the foreground, and the leader stays when it has ended, since
# the end of a leader ends that group, too. Whoever runs the tests may ignore SIGINT, as jobs in the background do; the command
# would inherit that.
LEADER = """
import fcntl, os, signal, subprocess, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
command = subprocess.Popen(sys.argv[2:], process_group=0)
os.tcsetpgrp(0, command.pid)
status = command.wait()
for one in range(3):
    os.close(one)
os.write(int(sys.argv[1]), str(status).encode())
signal.pause()
"""


class TerminalSession:
    """Runs a command on a terminal of its own. ``output`` is what it has written there so far."""

    def __init__(self, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> None:
        self.ours, its = os.openpty()
        self.status, told = os.pipe()
        self.leader = subprocess.Popen(
            [sys.executable, "-c", LEADER, str(told), *command],
            stdin=its,
            stdout=its,
            stderr=its,
            pass_fds=[told],
            cwd=directory,
            env=environment,
            start_new_session=True,
        )
        os.close(its)
        os.close(told)
        self.output = ""
        self.until = time.monotonic() + PATIENCE

    def interrupt_after(self, text: str) -> None:
        """Press Ctrl-C as soon as a text is on the terminal. Raises AssertionError if the command ends without it."""
        seen = len(self.output)
        while text not in self.output[seen:]:
            assert self._read(), f"the terminal never had {text!r}:\n{self.output}"
        os.write(self.ours, b"\x03")

    def finish(self) -> int:
        """Wait for the end of the command; its exit status."""
        while self._read():
            pass
        return int(os.read(self.status, 20))

    def left(self) -> list[str]:
        """The command lines of processes that the command has left, once they had time to end."""
        while (found := self._running()) and time.monotonic() < self.until:
            time.sleep(0.1)
        return found

    def close(self) -> None:
        """End the session, with all that is left of it."""
        self.leader.kill()
        self.leader.wait()
        os.close(self.ours)
        os.close(self.status)

    def _read(self) -> bool:
        """Read what is there; False at the end. Raises TimeoutError if that does not come."""
        ready, _, _ = select.select([self.ours], [], [], max(self.until - time.monotonic(), 0))
        if not ready:
            raise TimeoutError(f"no end in {PATIENCE} seconds:\n{self.output}")
        with suppress(OSError):  # EIO: no process has the terminal any more
            read = os.read(self.ours, 2**16)
            self.output += read.decode(errors="replace")
            return bool(read)
        return False

    def _running(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                state, _, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.leader.pid != int(path.name) and state != "Z":
                    found.append((path / "cmdline").read_text().replace("\0", " "))
        return found
