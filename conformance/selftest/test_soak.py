"""A soak keeps what is worse than declared, in the end of a process too, and marks what no longer shows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import findings, soak
from conformance.results_file import ROOT
from conformance.selftest.synthetic_results import row

MODULE = """
import os, signal
import torch
from impls.nested import checkpoint

def by(factor, function, *args, **kwargs):
    scale = lambda value: value * factor if isinstance(value, torch.Tensor) else value
    return torch.utils._pytree.tree_map(scale, checkpoint(function, *args, **kwargs))

def doubling(function, *args, **kwargs):
    return by(FACTOR, function, *args, **kwargs)

def ending(function, *args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)
"""
DRIVER = """
import sys
from pathlib import Path
from conformance.findings import opened
from conformance.soak import Soak

name, workers, seeds = sys.argv[2], int(sys.argv[3]), [int(seed) for seed in sys.argv[4:]]
with opened(Path(sys.argv[1])) as database:
    soak = Soak(database, "cpu", "quick", workers, [name], {}, {}, print)
    soak.replay()
    for seed in seeds:
        soak.round(seed, ["conformance/laws/test_structure.py::test_unused_outputs"])
    print(soak.summary())
"""


def run(directory: Path, factor: int, name: str, workers: int, *seeds: int) -> str:
    """What a soak of one law says in which ``doubling`` multiplies by ``factor``."""
    (directory / "somebody.py").write_text(MODULE.replace("FACTOR", str(factor)))
    arguments = [str(directory / "findings.jsonl"), f"somebody:{name}", str(workers), *map(str, seeds)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    done = subprocess.run([sys.executable, "-c", DRIVER, *arguments], cwd=directory, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_finding_is_kept_with_its_script_and_marked_when_it_is_mended(tmp_path: Path) -> None:
    first = run(tmp_path, 2, "doubling", 0, 5, 5)
    (kept,) = findings.read(tmp_path / "findings.jsonl").open
    assert (kept.law, kept.verdict, kept.expected, kept.seed, kept.times) == ("unused_outputs", "diverges", "agrees", 5, 2)
    assert kept.replayable
    assert "findings: 1 new, 1 open, 0 mended" in first
    assert "1 open, 0 mended" in run(tmp_path, 3, "doubling", 0)
    assert "findings: 0 new, 0 open, 1 mended" in run(tmp_path, 1, "doubling", 0, 5)


def test_the_end_of_a_process_is_a_finding(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    run(tmp_path, 1, "ending", 1, 5)
    (kept,) = findings.read(tmp_path / "findings.jsonl").open
    assert (kept.law, kept.impl, kept.verdict) == ("unused_outputs", "somebody:ending", "crashes")
    assert kept.detail == "the process ended"
    assert "1 open, 0 mended" in run(tmp_path, 1, "ending", 1)


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
    assert soak.is_worse(row("law", "impl", verdict, expected=expected, as_declared=as_declared)) is worse


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "--minutes is 0; it must be a positive number"),
        (["--minutes", "nan"], "--minutes is nan"),
        (["-n", "-1"], "-1 is negative"),
        (["--seed", "-1"], "-1 is negative"),
        (["--profile", "huge"], "invalid choice: 'huge'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        soak.main(arguments)
    assert message in capsys.readouterr().err


def test_an_implementation_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "conformance.soak", "--impl", "best", "-n", "0", "--findings", str(tmp_path / "f.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "no implementation is called 'best'" in done.stderr
