"""What a long run shows: in a small terminal each line once and a bar below, elsewhere numbered lines as they are done."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from benches.papers.progress import Watch
from tests.support.terminal import Terminal

COMMAND = """
import pathlib
import sys
from benches import reproduce
from benches.papers.paper import Paper, derived
def claims():
    return (derived(f"claim {n}", expected=n, measure=lambda n=n: n) for n in range(40))
reproduce.load = lambda name: Paper(name, "Title", "source", "Method.", claims)
sys.exit(not reproduce.reproduce_papers(["chen2016"], pathlib.Path(sys.argv[1])))
"""
CLAIMS = [f"claim {number}: {'words ' * (number % 30)}end {number}" for number in range(40)]


class Screen(io.StringIO):
    """A stream that is a terminal of 80 columns and 10 rows."""

    def __init__(self) -> None:
        super().__init__()
        self.terminal = Terminal(80, 10)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.terminal.write(text)
        return len(text)


def console(screen: Screen) -> Console:
    return Console(file=screen, force_terminal=True, width=80, height=10, highlight=False, _environ={"TERM": "xterm"})


def test_in_a_small_terminal_nothing_is_repeated_above_the_bar() -> None:
    screen = Screen()
    with Watch(console(screen), len(CLAIMS)) as watch:
        for number, claim in enumerate(CLAIMS):
            watch.doing(f"now {claim}")
            *above, bar = [line for line in screen.terminal.lines if line]
            assert bar.startswith(f"now claim {number}: ")
            assert bar.endswith(f" {number}/40")
            assert not [line for line in above if line.startswith("now ")]
            watch.done(Text(claim))
    told = " ".join(" ".join(screen.terminal.lines).split())
    assert told == " ".join(CLAIMS)


def test_a_table_that_grows_beyond_the_terminal_is_repeated() -> None:
    screen, table = Screen(), Table("claim")
    with Live(table, console=console(screen), auto_refresh=False, vertical_overflow="visible") as live:
        for claim in CLAIMS:
            table.add_row(claim)
            live.refresh()
    assert sum("end 0 " in line for line in screen.terminal.lines) > 1


@pytest.mark.parametrize("terminal", ["dumb", None])
def test_elsewhere_each_step_is_a_line_once_it_is_done(terminal: str | None) -> None:
    stream = io.StringIO()
    with Watch(Console(file=stream, force_terminal=bool(terminal), _environ={"TERM": terminal or ""}), 40) as watch:
        for number, claim in enumerate(CLAIMS, 1):
            watch.doing("now")
            watch.done(Text(claim))
            assert stream.getvalue().splitlines()[-1] == f"[{number}/40] {claim}"
    assert len(stream.getvalue().splitlines()) == 40


def test_the_command_shows_each_claim_once_in_a_pseudo_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 10, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    command = subprocess.Popen([sys.executable, "-c", COMMAND, tmp_path], stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    terminal, written = Terminal(80, 10), b""
    with contextlib.suppress(OSError):  # which is how the end is told
        while some := os.read(ours, 4096):
            written += some
    os.close(ours)
    terminal.write(written.decode().replace("\r\n", "\n"))
    assert command.wait() == 0
    assert [line for line in terminal.lines if line.startswith("as expected")] == [
        f"as expected  chen2016: claim {number}: {number}" for number in range(40)
    ]
    assert not [line for line in terminal.lines if "/41" in line]  # the bar is gone


def test_the_command_writes_a_line_for_each_claim_into_a_pipe(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", COMMAND, tmp_path], capture_output=True, text=True, check=True)
    *lines, told, end = done.stdout.splitlines()
    assert lines == [f"[{number + 1}/41] as expected  chen2016: claim {number}: {number}" for number in range(40)]
    assert told.startswith("[41/41] chen2016: 40 claims and 0 figures in ")
    assert end == f"40 claims, 0 failed; see {tmp_path / 'README.md'}"
