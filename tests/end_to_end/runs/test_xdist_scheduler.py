"""Workers of pytest-xdist find what one process finds, and leave the same results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.judging.law import LAWS
from conformance.rows.results_file import ROOT, read
from conformance.runs import plugin
from conformance.runs.xdist_scheduler import group
from impls import get
from tests.support.synthetic_results import row

pytest.importorskip("xdist")

MODULE = """
import torch
from impls.nested import checkpoint

def doubling(function, *args, **kwargs):
    double = lambda value: value * 2 if isinstance(value, torch.Tensor) else value
    value = checkpoint(function, *args, **kwargs)
    return torch.utils._pytree.tree_map(double, value) if isinstance(value, tuple) else value
"""
RUNS = {"one process": ["-p", "no:xdist"], "two workers": ["-n", "2"]}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[dict[str, Any]], str]]:
    """Exit status, rows without seconds, and output of the same run by one process and by two workers."""
    directory = tmp_path_factory.mktemp("runs")
    (directory / "somebody.py").write_text(MODULE)
    return {name: _run(directory, options) for name, options in RUNS.items()}


def _run(directory: Path, options: list[str]) -> tuple[int, list[dict[str, Any]], str]:
    results = directory / "results.jsonl"
    judged = ["--impl", "somebody:doubling", "--impl", "nested", "--profile", "quick", "--results", str(results)]
    judged += ["--in-process"]
    chosen = ["-k", "test_unused_outputs or test_keyword_arguments_that_are_false", "-p", "no:cacheprovider", "-v"]
    command = [sys.executable, "-m", "pytest", str(ROOT / "conformance"), *judged, *chosen, *options]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in read(results).rows]
    results.unlink()
    return done.returncode, rows, done.stdout


def test_status_and_rows_are_the_same_in_the_same_order(runs: dict[str, tuple[int, list[dict[str, Any]], str]]) -> None:
    status, rows, _ = runs["one process"]
    assert (status, len(rows)) == (1, 4)
    assert runs["two workers"][:2] == (status, rows)


def test_one_worker_has_all_of_a_law(runs: dict[str, tuple[int, list[dict[str, Any]], str]]) -> None:
    lines = [line for line in runs["two workers"][2].splitlines() if line.startswith("[gw") and "::" in line]
    places = {(line.split("::")[1].partition("[")[0], line.partition("]")[0]) for line in lines}
    assert len(lines) == 4
    assert len({law for law, _ in places}) == len(places) == 2


@pytest.mark.parametrize(
    ("change", "complete"),
    [
        (lambda rows: rows, True),
        (lambda rows: rows[::-1], True),
        (lambda rows: rows[1:], False),
        (lambda rows: [*rows[1:], rows[0] | {"as_declared": False}], False),
    ],
)
def test_a_run_is_complete_with_every_law_as_declared(change: Any, complete: bool) -> None:
    """The process that gathers has not collected the laws itself."""
    chosen = [get(name) for name in ("nested", "graph")]
    config: Any = SimpleNamespace(
        stash={plugin.LEFT_OUT: {}, plugin.CHOSEN: [SimpleNamespace(implementation=one) for one in chosen]},
        getoption={"--device": "cpu"}.get,
    )
    plugin._complete(config, [])
    rows = [row(law.name, one.name) for law in LAWS.values() for one in chosen if one.kind == law.kind and not law.lacks("cpu")]
    assert len(rows) > 100
    assert plugin._complete(config, change(rows)) is complete


def test_what_one_worker_runs() -> None:
    assert group("conformance/laws/test_rng.py::test_masks[nested]") == "conformance/laws/test_rng.py::test_masks"
    assert group("tests/suite/judging/test_law.py::test_it[one]") == "tests/suite/judging/test_law.py"
    mutants = "tests/mutants/test_mutants.py"
    assert group(f"{mutants}::test_it[a_law: a mutant]") == group(f"{mutants}::test_that[a_law: another]")
    assert group(f"{mutants}::test_it[a_law: a mutant]") != group(f"{mutants}::test_it[another_law: a mutant]")
    assert group(f"{mutants}::test_it[pkg.mod:attribute]") == mutants
    assert group(f"{mutants}::test_it[unknown name---impl: it is not there]") == mutants


def test_tests_of_one_file_are_run_by_one_worker(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each worker sets up for itself what the tests of a file share."""
    monkeypatch.setattr("xdist.scheduler.LoadScopeScheduling", lambda config, log: SimpleNamespace())
    found = pytestconfig.hook.pytest_xdist_make_scheduler.get_hookimpls()
    (make,) = [one.function for one in found if str(one.plugin_name) == str(ROOT / "tests" / "conftest.py")]
    asked: Any = [SimpleNamespace(getoption={"dist": dist}.get) for dist in ("load", "each")]
    made: Any = make(asked[0], None)
    assert made._split_scope is group
    assert make(asked[1], None) is None


def test_a_worker_starts_in_a_run_that_will_be_published() -> None:
    command = [sys.executable, "-m", "pytest", "conformance/laws/test_costs.py", "-n", "1", "--profile", "default"]
    done = subprocess.run([*command, "--until", "1"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "INTERNALERROR" not in done.stdout
