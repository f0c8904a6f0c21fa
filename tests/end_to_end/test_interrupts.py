"""Ctrl-C on a terminal, which interrupts every process of a run: it stops at once, what was judged is written, none is left."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from conformance.rows import results_file
from conformance.rows.results_file import ROOT
from tests.support.terminal_session import TerminalSession

MINE = "from impls.nested import checkpoint as nested\n\ndef checkpoint(function, *args):\n    return nested(function, *args)\n"
COMMANDS = {"pytest": ["pytest", "conformance"], "reprise": ["reprise", "judge"]}
LAWS = "test_rng"
ESCAPE = re.compile(r"\x1b\[[?0-9;]*[A-Za-z]")

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes of a session are found in /proc")


def judging(directory: Path, command: str, workers: int) -> TerminalSession:
    (directory / "mine.py").write_text(MINE)
    options = ["--impl", "mine:checkpoint", "--profile", "quick", "-k", LAWS, "-n", str(workers)]
    environment = {**os.environ, "PYTHONPATH": str(directory), "COLUMNS": "120", "TERM": "xterm"}
    told = [sys.executable, "-m", *COMMANDS[command], *options, "--results", str(directory / "found.jsonl")]
    return TerminalSession(told, ROOT, environment)


def last_line(session: TerminalSession) -> str:
    return [line for one in session.output.splitlines() if (line := ESCAPE.sub("", one).strip())][-1]


@pytest.mark.parametrize(("command", "workers", "status"), [("pytest", 0, 2), ("pytest", 2, 2), ("reprise", 0, 130)])
def test_an_interrupt_leaves_the_verdicts_so_far_and_no_process(
    command: str, workers: int, status: int, tmp_path: Path
) -> None:
    session = judging(tmp_path, command, workers)
    session.interrupt_after(" 1/")
    assert session.finish() == status
    assert session.left() == []
    assert "Traceback" not in session.output
    assert "making" not in session.output
    found = results_file.read(tmp_path / "found.jsonl").rows
    assert 1 <= len(found) < len(names_of_laws())
    assert last_line(session) == (
        f"interrupted: {len(found)} verdicts are in {tmp_path / 'found.jsonl'}; "
        "scripts are not made small, and nothing is declared"
    )


@pytest.mark.parametrize(("command", "workers"), [("pytest", 0), ("pytest", 2), ("reprise", 2)])
def test_a_second_interrupt_ends_without_a_traceback(command: str, workers: int, tmp_path: Path) -> None:
    session = judging(tmp_path, command, workers)
    session.interrupt_after(" 1/")
    session.interrupt_after("interrupt again to end without it")
    assert session.finish() == 130
    assert session.left() == []
    assert "Traceback" not in session.output


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_before_the_first_verdict_is_no_traceback(workers: int, tmp_path: Path) -> None:
    session = judging(tmp_path, "pytest", workers)
    session.interrupt_after("session starts")
    assert session.finish() == 2
    assert session.left() == []
    assert "Traceback" not in session.output
    assert not (tmp_path / "found.jsonl").exists()


def names_of_laws() -> list[str]:
    text = (ROOT / "conformance" / "laws" / f"{LAWS}.py").read_text()
    return re.findall(r"^def test_(\w+)", text, re.MULTILINE)
