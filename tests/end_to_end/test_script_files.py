"""Scripts of faults are files beside their results: all of them, no others, each short and with the status of its fault."""

from __future__ import annotations

import ast
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from conformance.judging.verdicts import VALUES
from conformance.reports import report
from conformance.reproducers import script_files
from conformance.reproducers.reduction_steps import MOST
from conformance.reproducers.script import script
from conformance.reproducers.script_files import (
    Key,
    complete,
    directory_of,
    disagreements,
    files,
    naming_files,
    reduce_scripts,
    resume,
    write,
)
from conformance.reproducers.script_syntax import has_threads
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT, read
from conformance.rows.results_file import write as write_results
from impls import get
from tests.support.generated_pages import write_places
from tests.support.script_faults import faults_of
from tests.support.synthetic_results import HEADER, row

NONE: Set[Key] = frozenset()
WRONG = """def run(checkpoint, note, device):
    torch.manual_seed(0)
    p = torch.randn(2, device=device, requires_grad=True)
    q = torch.randn(2, device=device)
    note('leaves', (p, q))
    y = checkpoint(lambda box: box[0].sin(), [p * 1])
    note('forward', y)
    y.sum().backward()
    note('gradients 0', [p.grad])
"""


def fault(impl: str, law: str, text: str = "sys.exit(1)", **others: Any) -> dict[str, Any]:
    head = f'"""{impl}, law {law}. It holds."""\n'
    return row(law, impl, "diverges", program=head + text, **others)


def written(law: str, impl: str = "legacy") -> dict[str, Any]:
    return fault(impl, law) | {"program": script(WRONG, get(impl), f"law {law}. It holds.", VALUES)}


def test_divergences_and_crashes_have_files_refusals_have_none() -> None:
    rows = [
        fault("legacy", "one"),
        fault("a.b:c", "two"),
        fault("legacy", "three") | {"verdict": "refuses"},
        row("four", "legacy"),
    ]
    assert list(files(rows)) == ["legacy-one.py", "a-b-c-two.py"]


@pytest.mark.parametrize(
    ("results", "directory"),
    [
        ("results/conformance-cpu.jsonl", "results/programs"),
        ("results/conformance-cuda.jsonl", "results/programs-cuda"),
        ("results/peers-cpu.jsonl", "results/programs"),
        ("results/runs/quick-cpu.jsonl", "results/runs/quick-cpu"),
        ("elsewhere/conformance-cpu.jsonl", "elsewhere/conformance-cpu"),
        ("elsewhere/mine", "elsewhere/mine-programs"),
    ],
)
def test_each_results_file_has_a_directory(results: str, directory: str) -> None:
    assert directory_of(Path(results)) == Path(directory)


def test_files_that_are_gone_are_removed_where_the_implementation_was_judged(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    write(path, [fault("one", "a"), fault("one-more", "a"), fault("other", "a")], asked=NONE)
    (tmp_path / "run" / "notes.py").write_text("of the user's\n")
    write(path, [fault("one", "b"), row("a", "one")], asked=NONE)
    names = sorted(one.name for one in (tmp_path / "run").iterdir())
    assert names == ["notes.py", "one-b.py", "one-more-a.py", "other-a.py"]


def test_a_run_without_faults_makes_no_directory(tmp_path: Path) -> None:
    write(tmp_path / "run.jsonl", [row("a", "one")])
    assert not list(tmp_path.iterdir())


def test_a_missing_a_changed_and_an_old_file_are_noticed(tmp_path: Path) -> None:
    path, rows = tmp_path / "run.jsonl", [fault("one", law) for law in "abc"]
    write(path, rows, asked=NONE)
    assert not disagreements(path, rows)
    (tmp_path / "run" / "one-a.py").unlink()
    (tmp_path / "run" / "one-b.py").write_text('"""one, law b. It holds."""\n')
    names = [Path(one).name for one in disagreements(path, rows[:2])]
    assert names == ["one-a.py", "one-b.py", "one-c.py"]


def test_the_check_of_the_report_compares_them(tmp_path: Path) -> None:
    path, rows = tmp_path / "results" / "conformance-cpu.jsonl", [fault("one", "a")]
    write_results(path, HEADER, rows)
    write_places(tmp_path)
    report.write(tmp_path)
    (told,) = report.check(tmp_path)
    assert told.endswith("one-a.py")
    write(path, rows, asked=NONE)
    assert report.check(tmp_path) == []


def test_a_published_row_names_the_file_of_its_script(tmp_path: Path) -> None:
    path = tmp_path / "results" / "conformance-cpu.jsonl"
    refused = fault("one", "b") | {"verdict": "refuses"}
    rows = write(path, [fault("one", "a"), refused, fault("one.", "a"), fault("one-", "a"), row("c", "one")], asked=NONE)
    named = naming_files(path, rows)
    assert [one.get("script") for one in named] == ["programs/one-a.py", None, None, "programs/one--a.py", None]
    assert [one.get("program") for one in named] == [None, *(one["program"] for one in rows[1:3]), None, ""]
    write_results(path, HEADER, named)
    assert list(read(path).rows) == rows


def test_a_published_script_that_was_edited_by_hand_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results" / "conformance-cpu.jsonl"
    write_results(path, HEADER, naming_files(path, write(path, [fault("one", "a")], asked=NONE)))
    script = tmp_path / "results" / "programs" / "one-a.py"
    script.write_text(script.read_text() + "\n")
    with pytest.raises(ValueError, match=r"line 2 names script programs/one-a\.py, which was edited since the run made it"):
        read(path)


def test_what_is_not_needed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # a process takes longer to start than to reduce these
    rows = [written("one"), written("two") | {"expected": "agrees"}, written("three", "torch-reentrant"), row("four", "legacy")]
    assert script_files.reducible(rows, {("legacy", "two"), ("legacy", "four")}) == rows[1:2]
    *smaller, nothing = [one["program"] for one in reduce_scripts(rows)]
    assert all("q = torch" in one["program"] for one in rows[:3])
    assert not any("q = torch" in one or "leaves" in one for one in smaller)
    assert all("box[0].sin()" in one for one in smaller)
    assert nothing == ""


def _published(path: Path, **changes: Any) -> tuple[list[dict[str, Any]], list[results_file.Row]]:
    """Rows that are published at a path with a script each, and as another run of the same code finds them."""
    found = [fault("one", law) | {"fingerprints": {"law": "1"}, "seconds": 2.0} for law in "ab"]
    scripts = [{**one, "program": one["program"] + "# small\n"} for one in found]
    scripts[1]["measured"] = {"commit": "1", "date": "2026-11-26"}  # a run with --older kept this row
    write_results(path, HEADER, naming_files(path, write(path, scripts, asked=NONE)))
    return scripts, [{**one, "seconds": 3.0, **changes} for one in found]


def test_equal_rows_of_equal_code_keep_their_scripts(tmp_path: Path) -> None:
    path = tmp_path / "results" / "conformance-cpu.jsonl"
    scripts, found = _published(path)
    kept = script_files.keeping_scripts(path, HEADER, found)
    assert [one["program"] for one in kept] == [one["program"] for one in scripts]
    assert [one["seconds"] for one in kept] == [3.0, 3.0]
    other_patch, other_minor = ({**HEADER["versions"], "python": one} for one in ("3.11.99", "3.99.0"))
    assert script_files.keeping_scripts(path, HEADER | {"versions": other_patch}, found) == kept
    assert script_files.keeping_scripts(path, HEADER | {"versions": other_minor}, found) == found
    assert script_files.keeping_scripts(path, HEADER | {"seed": 5}, found) == found
    assert script_files.keeping_scripts(tmp_path / "other.jsonl", HEADER, found) == found
    assert script_files.keeping_scripts(path, HEADER, [{**found[0], "law": "c"}]) == [{**found[0], "law": "c"}]


@pytest.mark.parametrize("changes", [{"fingerprints": {"law": "2"}}, {"detail": "other"}, {"cases": 9}])
def test_rows_that_differ_get_scripts_anew(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "results" / "conformance-cpu.jsonl"
    _, found = _published(path, **changes)
    assert script_files.keeping_scripts(path, HEADER, found) == found


def test_a_script_that_is_there_already_is_not_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_files, "_reduce", lambda tasks: dict.fromkeys(tasks, "small"))
    rows = [fault("one", "a"), fault("one", "b")]
    (tmp_path / "one-a.py").write_text(rows[0]["program"])
    reduced = reduce_scripts(rows, directory=tmp_path)
    assert [one["program"] for one in reduced] == [rows[0]["program"], "small"]


def test_an_interruption_loses_the_scripts_of_one_implementation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "results" / "conformance-cpu.jsonl"
    rows = [fault(name, law) for law in ("a", "b") for name in ("one", "other")]
    real = script_files.write

    def interrupted(results: Path, rows: list[dict[str, Any]], *, asked: Set[Key] | None) -> list[results_file.Row]:
        if rows[0]["impl"] == "other":
            raise KeyboardInterrupt
        return real(results, rows, asked=NONE)

    monkeypatch.setattr(script_files, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        complete(path, HEADER, rows, published=True)
    assert list(read(path).rows) == rows
    named = [json.loads(line).get("script") for line in path.read_text().splitlines()[1:-1]]
    assert named == ["programs/one-a.py", None, "programs/one-b.py", None]


def test_going_on_makes_the_scripts_of_published_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_files, "ROOT", tmp_path)
    path = tmp_path / "results" / "peers-cpu.jsonl"
    write_results(path, HEADER, [written("one"), row("two", "legacy")])
    resume(path)
    made = (tmp_path / "results" / "programs" / "legacy-one.py").read_text()
    assert "box[0].sin()" in made
    assert "q = torch" not in made
    assert [one["program"] for one in read(path).rows] == [made, ""]


def test_going_on_with_a_run_of_a_user_makes_the_scripts_of_unexpected_verdicts(tmp_path: Path) -> None:
    path, rows = tmp_path / "mine.jsonl", [written("one") | {"expected": "agrees"}, written("two")]
    write_results(path, HEADER, rows)
    resume(path)
    one, two = (directory_of(path) / f"legacy-{name}.py" for name in ("one", "two"))
    assert "q = torch" not in one.read_text()
    assert two.read_text() == rows[1]["program"]
    assert [found["program"] for found in read(path).rows] == [one.read_text(), two.read_text()]


@pytest.mark.parametrize("name", ["results/conformance-cpu.jsonl", "mine.jsonl"])
def test_going_on_needs_results(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match=name):
        resume(tmp_path / name)


def test_nothing_is_lost_when_a_process_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    rows = [written("one")]
    assert reduce_scripts(rows) == rows
    assert "scripts that stay long: 1, because" in capsys.readouterr().err


SLEEPS = "import os, pathlib, sys, time\npathlib.Path({!r}).write_text(str(os.getpid()))\ntime.sleep(300)\nsys.exit(1)\n"


def ended(process: int, seconds: float = 60.0) -> bool:
    """Whether a process that nobody here waits for is gone, or will be in so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_an_interrupt_ends_the_scripts_that_run(tmp_path: Path) -> None:
    started, before = tmp_path / "started", signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not started.exists() or not started.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            reduce_scripts([fault("one", "a", SLEEPS.format(str(started))) | {"verdict": "refuses"}])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended(int(started.read_text()))


def test_the_control_itself_is_compared_with_plain_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(script_files.CONTROLS, "checkpoint", "legacy")
    smaller = reduce_scripts([written("one")])[0]["program"]
    assert "q = torch" not in smaller


def test_no_program_of_a_law_makes_threads_unnoticed() -> None:
    making = {}
    for path in [
        *(ROOT / "conformance" / "programs" / "scenarios").rglob("*.py"),
        *(ROOT / "conformance" / "laws").glob("*.py"),
    ]:
        text = path.read_text(encoding="utf-8")
        for one in ast.parse(text).body:  # what is printed is the function alone
            source = ast.get_source_segment(text, one) or ""
            if isinstance(one, ast.FunctionDef) and re.search(r"\b(Thread|Timer|ThreadPoolExecutor)\(", source):
                making[path.stem, one.name] = has_threads(source)
    assert len(making) > 10
    assert {name for name, noticed in making.items() if not noticed} == set()


@pytest.mark.parametrize(
    ("impl", "line", "found"),
    [
        ("torch-graph", "    import threading", []),
        ("torch-graph", "    import impls", ["impls"]),
        ("torch-graph", "    from conformance.simulated_device.device import second", ["conformance"]),
        ("torch-graph", "    import numpy", ["numpy"]),
        ("torch-graph", "    import numpy, torch.testing._internal.common_methods_invocations", []),
        ("legacy", "    from impls import get", []),
        ("legacy", "    import conformance", ["conformance"]),
    ],
)
def test_a_script_that_is_long_or_takes_more_is_noticed(impl: str, line: str, found: list[str]) -> None:
    text = script(WRONG.replace("    y.sum()", f"{line}\n    y.sum()"), get(impl), "law one. It holds.", VALUES)
    long = text + "pass\n" * MOST
    assert faults_of(text) == found
    assert faults_of(long) == [f"{len(long.splitlines())} lines", *found]
