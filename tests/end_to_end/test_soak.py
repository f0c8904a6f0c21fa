"""A soak keeps what is worse than declared, in the end of a process too, and marks what no longer shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance.judging.result import is_worse
from conformance.reproducers import findings, replay
from conformance.reproducers.findings import Finding
from conformance.reproducers.reduction import MEETINGS
from conformance.reproducers.script_process import Ended
from conformance.rows.results_file import ROOT
from conformance.runs.row_collector import PROPERTY
from conformance.soak import command, inner_pytest
from tests.support.synthetic_results import row

MODULE = """
import os, signal
import torch
from impls.nested import checkpoint

def doubling(function, *args, **kwargs):
    value = checkpoint(function, *args, **kwargs)
    scale = lambda value: value * FACTOR if isinstance(value, torch.Tensor) else value
    return torch.utils._pytree.tree_map(scale, value) if isinstance(value, tuple) else value

def ending(function, *args, **kwargs):
    value = checkpoint(function, *args, **kwargs)
    return os.kill(os.getpid(), signal.SIGKILL) if isinstance(value, tuple) else value
"""
DRIVER = """
import json, os, sys
from pathlib import Path
from conformance.soak.command import Soak
from conformance.reproducers.findings import opened

directory, module, names = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
sys.dont_write_bytecode = True  # the module is written anew within a second
os.cpu_count = lambda: 1  # a process takes longer to start than to reduce the scripts of two findings

def soak(factor, *rounds):
    (directory / "somebody.py").write_text(module.replace("FACTOR", str(factor)))
    with opened(directory / "findings.jsonl") as database:
        one = Soak(database, "cpu", "quick", 0, {name: name for name in names}, {}, {}, lambda text: None)
        one.replay()
        for one.workers in rounds:
            one.round(5, ["conformance/laws/test_structure.py::test_unused_outputs"])
        return one.summary(), (directory / "findings.jsonl").read_text()

print(json.dumps([soak(2, 0, 1), soak(3), soak(1)]))
"""


@dataclass(frozen=True)
class Soaked:
    """What a soak said at its end, and the findings that it left open, by implementation."""

    said: str
    open: Mapping[str, Finding]


@pytest.fixture(scope="module")
def soaks(tmp_path_factory: pytest.TempPathFactory) -> list[Soaked]:
    """Three soaks of one law: ``doubling`` multiplies by two, by three and by one. The first judges alone, then by a worker."""
    pytest.importorskip("xdist")
    directory = tmp_path_factory.mktemp("soaks")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    command = [sys.executable, "-c", DRIVER, str(directory), MODULE, "somebody:doubling", "somebody:ending"]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = []
    for said, text in json.loads(done.stdout.splitlines()[-1]):
        (directory / "left.jsonl").write_text(text)
        found.append(Soaked(said, {one.impl: one for one in findings.read(directory / "left.jsonl").open}))
    return found


def test_a_finding_is_kept_with_its_script_and_marked_when_it_is_mended(soaks: list[Soaked]) -> None:
    first, worse, mended = soaks
    kept = first.open["somebody:doubling"]
    assert (kept.law, kept.verdict, kept.expected, kept.seed, kept.times) == ("unused_outputs", "diverges", "agrees", 5, 2)
    assert kept.replayable
    assert "findings: 2 new, 2 open, 0 mended" in first.said
    assert "findings: 0 new, 2 open, 0 mended" in worse.said
    assert "findings: 0 new, 1 open, 1 mended" in mended.said


def test_the_end_of_the_process_of_an_implementation_is_a_finding(soaks: list[Soaked]) -> None:
    kept = soaks[0].open["somebody:ending"]
    assert (kept.law, kept.verdict, kept.times) == ("unused_outputs", "crashes", 2)
    assert all("somebody:ending" in one.open for one in soaks)


TEST = "conformance/laws/test_rng.py::test_masks[older]"
ROW = row("masks", "older", "diverges", expected="agrees")
FOUND: dict[str, Any] = {
    **dict.fromkeys(("detail", "program", "first_seen", "last_seen"), ""),
    "law": "masks",
    "impl": "somebody:older",
    "device": "cpu",
    "expected": "agrees",
    "verdict": "diverges",
    "test": TEST,
    "seed": 3,
    "profile": "quick",
    "versions": {},
    "suite": {},
}


def reported(when: str, outcome: str, told: str = "", *properties: tuple[str, object]) -> pytest.TestReport:
    """What pytest reports of TEST; ``???`` is when a worker of xdist ended."""
    made: Any = pytest.TestReport
    return made(TEST, ("test_rng.py", 1, "test_masks"), {}, outcome, told, when, user_properties=properties)


@pytest.fixture
def started(tmp_path: Path) -> command.Soak:
    """A soak with a database of its own."""
    return command.Soak(findings.Findings(tmp_path / "f.jsonl"), "cpu", "quick", 1, {}, {}, {}, lambda text: None)


def answer(monkeypatch: pytest.MonkeyPatch, status: int, *reports: Any, interrupt: type[BaseException] | None = None) -> None:
    """Let pytest report this instead of running."""

    def pretend(listener: inner_pytest.Listener, arguments: Sequence[str]) -> tuple[int, str]:
        for report in reports:
            of_tests = isinstance(report, pytest.TestReport)
            (listener.pytest_runtest_logreport if of_tests else listener.pytest_collectreport)(report)
        if interrupt is not None:
            listener.pytest_keyboard_interrupt(cast(Any, SimpleNamespace(type=interrupt)))
        return status, "what pytest said"

    monkeypatch.setattr(inner_pytest, "run", pretend)


def test_the_end_of_a_worker_is_a_finding_for_what_it_judged(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, reported("???", "failed", "worker 'gw0' crashed"))
    started.round(3)
    (kept,) = started.database.open
    assert (kept.law, kept.impl, kept.verdict, kept.detail) == ("masks", "older", "crashes", "the process ended")
    assert not kept.replayable


def test_what_has_no_script_is_judged_again(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    worse = reported("call", "failed", "", (PROPERTY, ROW))
    answer(monkeypatch, 1, worse)
    started.round(3)
    started.replay()
    assert len(started.database.open) == 1
    answer(monkeypatch, 4)
    started.replay()
    assert len(started.database.open) == 1  # pytest could not run it, which says nothing
    answer(monkeypatch, 0, reported("call", "passed", "", (PROPERTY, ROW | {"verdict": "agrees"})))
    started.replay()
    assert started.database.open == []
    assert len(started.database.by_identity) == 1


def test_a_race_is_mended_when_neither_its_script_nor_its_test_shows_it(
    started: command.Soak, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "replay", lambda rows: [(one, Ended(0, "")) for one in rows])
    race = Finding(**{**FOUND, "impl": "nested", "program": "import threading\nsys.exit(threads_met)"})
    started.database.add(race)
    judged: list[str] = []

    def met(after: int) -> None:
        judged.clear()

        def still(finding: Finding) -> bool:
            judged.append(finding.law)
            return len(judged) > after

        monkeypatch.setattr(started, "still_shows", still)

    met(MEETINGS - 1)
    started.replay()
    assert len(started.database.open) == 1
    met(MEETINGS)
    started.replay()
    assert (started.database.open, len(judged)) == ([], MEETINGS)


@pytest.mark.parametrize(
    ("line", "threads"),
    [
        ("import os, threading", True),
        ("import concurrent.futures, os", True),
        ("from concurrent.futures import ThreadPoolExecutor", True),
        ("torch.set_num_threads(1)", False),
    ],
)
def test_a_program_with_threads_is_known_by_what_it_imports(line: str, threads: bool) -> None:
    assert Finding(**{**FOUND, "program": line}).may_race is threads


def test_the_script_of_a_race_is_run_until_its_threads_meet(started: command.Soak, tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    program = f'"""nested, law masks."""\nimport sys, threading\nwith open({str(counter)!r}, "a") as file: file.write(".")\n'
    program += f'met = len(open({str(counter)!r}).read()) >= {replay.TRIES}\nprint("due is 1, nested", met)\nsys.exit(met)\n'
    started.database.add(Finding(**{**FOUND, "impl": "nested", "program": program}))
    started.replay()
    assert len(counter.read_text()) == replay.TRIES
    assert len(started.database.open) == 1


def test_what_is_open_of_others_is_neither_tried_nor_counted(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    started.database.add(Finding(**FOUND))
    started.implementations = {"nested": "nested"}
    assert (started.open, len(started.database.open)) == ([], 1)
    assert "0 new, 0 open, 0 mended\n  and 1 open ones of implementations that were not judged now" in started.summary()
    answer(monkeypatch, 0, reported("call", "passed", "", (PROPERTY, ROW | {"verdict": "agrees", "impl": "somebody:older"})))
    started.replay()
    assert len(started.database.open) == 1
    started.implementations = {"older-one": "somebody:older"}  # by the name under which it is installed
    assert [one.impl for one in started.open] == ["somebody:older"]
    started.replay()
    assert started.database.open == []
    assert started.implementations == {"older-one": "somebody:older"}


def test_whatever_was_judged_counts(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, reported("call", "failed", "", (PROPERTY, ROW | {"impl": "somebody:older"})))
    started.implementations = {"older-one": "nobody expected that"}
    started.round(3)
    assert [one.impl for one in started.open] == ["somebody:older"]
    assert "findings: 1 new, 1 open, 0 mended" in started.summary()


def test_a_round_is_judged_by_the_claims_that_were_asked_for(started: command.Soak) -> None:
    assert "--like" not in started.arguments(3, None)
    started.like = "torch-nonreentrant"
    assert " ".join(started.arguments(3, None)).endswith("--like torch-nonreentrant -n 1")


def test_a_law_that_fails_by_itself_is_an_error_and_no_finding(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 1, reported("call", "failed", "NameError: masks"))
    assert started.round(3) == []
    assert started.errors == [f"{TEST}, seed 3: NameError: masks"]
    assert "a law's own code failed" in started.summary()


def test_what_was_found_before_the_user_ended_it_is_kept(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 2, reported("call", "failed", "", (PROPERTY, ROW)), interrupt=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        started.round(3)
    assert [kept.law for kept in started.database.open] == ["masks"]


def test_a_law_that_cannot_be_collected_is_told(started: command.Soak, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = pytest.CollectReport("laws/test_rng.py", "failed", "SyntaxError: line 3", None)
    answer(monkeypatch, 2, failed, interrupt=pytest.Session.Interrupted)
    with pytest.raises(ValueError, match=r"(?s)could not run conformance with seed 3:.*SyntaxError: line 3.*what pytest said"):
        started.round(3)


@pytest.mark.parametrize(
    ("expected", "verdict", "as_declared", "worse"),
    [
        ("agrees", "agrees", True, False),
        ("agrees", "agrees", False, False),  # too few cases prove anything
        ("agrees", "refuses", False, True),
        ("refuses", "diverges", False, True),
        ("diverges", "agrees", False, False),  # a limit that does not show in a few cases
        ("diverges", "crashes", False, False),
        ("crashes", "diverges", True, False),  # of one that declares nothing
    ],
)
def test_what_is_worse_than_declared(expected: str, verdict: str, as_declared: bool, worse: bool) -> None:
    assert is_worse(row("law", "impl", verdict, expected=expected, as_declared=as_declared)) is worse
