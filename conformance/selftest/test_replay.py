"""Scripts that show a fault end with status 1 while it is there, and with 0 once it is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conformance import replay
from conformance.judge import Case, judge
from conformance.programs import Named
from conformance.results_file import ROOT
from conformance.scripts import script
from conformance.verdicts import Measured
from impls import get


def _twice(checkpoint: Any, note: Any, device: str) -> None:
    x = torch.ones(2, device=device, requires_grad=True)  # type: ignore[name-defined]  # noqa: F821 - the printed program imports torch
    note("leaves", (x,))

    def f(h):  # type: ignore[no-untyped-def]
        return h.sin().exp()

    y = checkpoint(f, x)
    note("forward", y)
    y.sum().backward()
    note("gradients 0", [x.grad])
    note("held 1", [x, y])
    note("expected gradient", x.grad * 1)
    note("seen gradient", x.grad)


NESTED = get("nested")
PROGRAM = Named(_twice)


CASES = [
    (Measured("values"), 0),
    (Measured("expected"), 0),
    (Measured("raises"), 1),
    (Measured("calls", (("f", 2),)), 0),
    (Measured("calls", (("f", 1),)), 1),
    (Measured("calls", (("f", 3),), at_most=True), 0),
    (Measured("kernels", (("sin", 2), ("exp", 2))), 0),
    (Measured("kernels", (("sin", 1),)), 1),
    (Measured("alive", (("held 1", 0),)), 0),
    (Measured("packed", (("packed in forward", 1),)), 0),
    (Measured("packed", (("packed in forward", 2),)), 1),
]
DRIVER = """
import json, sys
from conformance.replay import replay
print(json.dumps([(status, output) for _, status, output in replay(json.load(sys.stdin))]))
"""


@pytest.fixture(scope="module")
def replayed() -> list[tuple[int, str]]:
    """Status and output of the script of each case. Replaying forks, so it is done where no thread of autograd is."""
    rows = [{"program": script(PROGRAM.source, NESTED, "law", measured)} for measured, _ in CASES]
    run = subprocess.run([sys.executable, "-c", DRIVER], cwd=ROOT, input=json.dumps(rows), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.parametrize(("index", "expected"), [(index, expected) for index, (_, expected) in enumerate(CASES)])
def test_the_status_says_whether_what_is_due_was_seen(index: int, expected: int, replayed: list[tuple[int, str]]) -> None:
    code, output = replayed[index]
    assert code == expected, output


def test_a_script_imports_torch_and_the_implementation_alone() -> None:
    text = script(PROGRAM.source, get("torch-nonreentrant"), "law", Measured("alive", (("held 1", 0),)))
    imports = [line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))]
    assert set(imports) == {"functools", "sys", "torch"}


def test_the_law_and_the_implementation_are_said_at_the_head() -> None:
    assert script(PROGRAM.source, NESTED, "law one", Measured()).startswith('"""nested: law one"""\n')


def test_options_are_passed() -> None:
    text = script(PROGRAM.source, NESTED, "law", Measured(), "early_stop=False")
    assert "\ncheckpoint = functools.partial(checkpoint, early_stop=False)\n" in text


def test_outcomes_say_what_was_measured() -> None:
    def check(case: Case) -> None:
        case.equals_plain()

    assert judge(check, Case(PROGRAM, NESTED, "cpu"), recomputes=False, gradients=False).measured == Measured("values")


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("conformance-cpu*.jsonl")), ids=lambda path: path.stem)
def test_published_scripts_show_their_fault(path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "conformance.replay", str(path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_only_faults_are_replayed() -> None:
    rows = [
        {"verdict": "diverges", "program": "sys.exit(0)"},
        {"verdict": "diverges", "program": "print()"},
        {"verdict": "refuses", "program": "sys.exit(0)"},
    ]
    assert replay.standalone(rows) == rows[:1]
