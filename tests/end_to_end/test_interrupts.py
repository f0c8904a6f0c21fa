"""Ctrl-C on a terminal, which interrupts every process of a run: it stops at once, what was judged is written, none is left."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from conformance.rows import results_file
from conformance.rows.results_file import ROOT
from tests.support.terminal_session import TerminalSession

MINE = "from impls.nested import checkpoint as nested\n\ndef checkpoint(function, *args):\n    return nested(function, *args)\n"
COMMANDS = {"pytest": ["pytest", "conformance"], "reprise": ["reprise", "judge"]}
LAWS = "test_rng"
COUNT = len(re.findall(r"^def test_", (ROOT / "conformance" / "laws" / f"{LAWS}.py").read_text(), re.MULTILINE))
FIRST = f" 1/{COUNT}"  # of the display, once the first verdict is there
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes of a session are found in /proc")

Judging = Callable[[str, int], TerminalSession]


@pytest.fixture
def judging(tmp_path: Path) -> Iterator[Judging]:
    sessions = []

    def started(command: str, workers: int) -> TerminalSession:
        (tmp_path / "mine.py").write_text(MINE)
        options = ["--impl", "mine:checkpoint", "--profile", "quick", "-k", LAWS, "-n", str(workers)]
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "120", "TERM": "xterm"}
        told = [sys.executable, "-m", *COMMANDS[command], *options, "--results", str(tmp_path / "found.jsonl")]
        sessions.append(TerminalSession(told, ROOT, environment))
        return sessions[-1]

    yield started
    for one in sessions:
        one.close()


def last_line(session: TerminalSession) -> str:
    return [line for one in session.output.splitlines() if (line := ESCAPE.sub("", one).strip())][-1]


@pytest.mark.parametrize(("command", "workers", "status"), [("pytest", 0, 2), ("pytest", 2, 2), ("reprise", 0, 130)])
def test_an_interrupt_leaves_the_verdicts_so_far_and_no_process(
    command: str, workers: int, status: int, tmp_path: Path, judging: Judging
) -> None:
    session = judging(command, workers)
    session.interrupt_after(FIRST)
    assert session.finish() == status
    assert session.left() == []
    assert "Traceback" not in session.output
    assert "making" not in session.output
    found = results_file.read(tmp_path / "found.jsonl").rows
    assert 1 <= len(found) < COUNT
    verdicts = "1 verdict is" if len(found) == 1 else f"{len(found)} verdicts are"
    told = f"interrupted: {verdicts} in {tmp_path / 'found.jsonl'}; scripts are not shrunk, and no declaration is made"
    assert last_line(session) == told


@pytest.mark.parametrize(("command", "workers"), [("pytest", 0), ("pytest", 2), ("reprise", 2)])
def test_a_second_interrupt_ends_without_a_traceback(command: str, workers: int, judging: Judging) -> None:
    session = judging(command, workers)
    session.interrupt_after(FIRST)
    session.interrupt_after("interrupt again to end without it")
    assert session.finish() == 130
    assert session.left() == []
    assert "Traceback" not in session.output


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_before_the_first_verdict_is_no_traceback(workers: int, tmp_path: Path, judging: Judging) -> None:
    session = judging("pytest", workers)
    session.interrupt_after("session starts")
    assert session.finish() == 2
    assert session.left() == []
    assert "Traceback" not in session.output
    assert last_line(session) == "interrupted before the first verdict: nothing is written"
    assert not (tmp_path / "found.jsonl").exists()
