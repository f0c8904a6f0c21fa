"""Where results go: nothing is overwritten that is not results of a run, and what cannot be written is refused first."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.judging.law import all_laws
from conformance.rows.results_file import ROOT, write
from conformance.runs import plugin
from conformance.runs.destination import merged_path, path_of_run, published_path, results_path
from impls import get
from tests.support.synthetic_results import HEADER, ROWS, row

SCRIPT = '"""nested, law subsets. Gradients equal plain\'s."""\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with results, their scripts, and other things."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "README.md").write_text("# Mine\n")
    (tmp_path / "latin").write_bytes("é\n".encode("latin-1"))
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "nested-subsets.py").write_text(SCRIPT)
    write(tmp_path / "mine.jsonl", HEADER, ROWS)
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(
    "text", ["mine.jsonl", "new.jsonl", "new", "empty", "deep/down/new.jsonl", f"{ROOT}/results/runs/new.jsonl"]
)
def test_a_new_file_and_results_of_an_earlier_run_are_accepted(text: str, here: Path) -> None:
    before = sorted(here.rglob("*"))
    assert results_path(text) == Path(text)
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("README.md", "which exists and holds no results of this suite (README.md: line 1 is not JSON"),
        ("latin", "which exists and holds no results of this suite (latin: it is not UTF-8 text"),
        ("package", "a directory"),
        ("", "a directory"),
        ("pipe", "which is not a file"),
        ("README.md/new.jsonl", "which cannot be written: "),
        ("/proc/new.jsonl", "which cannot be written: "),
        ("n" * 254, "which cannot be written: "),
        ("package.jsonl", "and its scripts would go to package, where __init__.py is not a script of a run"),
        ("README.md.jsonl", "and its scripts would go to README.md, which is not a directory"),
    ],
)
def test_what_would_destroy_something_or_cannot_be_written_is_refused(text: str, reason: str, here: Path) -> None:
    with pytest.raises(ValueError, match=f"^it is {re.escape(f'{text}, {reason}')}") as refused:
        results_path(text)
    told = str(refused.value)
    assert told.endswith("; accepted is the path of a new file, or of the results of an earlier run, which are replaced")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("README.md", "it is README.md, which exists and holds no results of this suite (README.md: line 1 is not JSON"),
        ("package", "package is a directory"),
        ("pipe", "it is pipe, which is not a file"),
        ("README.md/new.jsonl", "README.md/new.jsonl cannot be written: README.md is not a directory"),
    ],
)
def test_merged_results_replace_nothing_but_results(text: str, reason: str, here: Path) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}"):
        merged_path(text)


@pytest.mark.parametrize("text", ["mine.jsonl", "new.jsonl", "empty", "-"])
def test_merged_results_go_where_nothing_or_results_are(text: str, here: Path) -> None:
    assert merged_path(text) == text


@pytest.mark.parametrize("name", ["conformance-cpu.jsonl", "conformance-cuda.jsonl", "peers-cpu.jsonl", "programs.jsonl"])
def test_published_results_and_their_scripts_are_not_for_any_run(name: str, here: Path) -> None:
    (here / "linked").symlink_to(ROOT / "results")
    for text in (str(ROOT / "results" / name), f"linked/{name}"):
        for accepted in (results_path, merged_path):
            with pytest.raises(ValueError, match=r"published results .* only a complete run as declared writes"):
                accepted(text)


def test_published_names_are_refused_by_their_names() -> None:
    for peers in (False, True):
        with pytest.raises(ValueError, match="published"):
            results_path(str(published_path("cpu", peers=peers)))


@pytest.mark.parametrize(
    ("chosen", "peers", "name"),
    [
        ([], False, "quick-cpu"),
        ([], True, "quick-cpu-peers"),
        (["pkg.mod:x", "nested", "pkg.mod:x"], False, "quick-cpu-pkg-mod-x-nested"),
        (["m:" + "x" * 200], False, "quick-cpu-m-" + "x" * 88),
    ],
)
def test_a_run_of_some_laws_has_a_file_of_its_own(chosen: list[str], peers: bool, name: str) -> None:
    files = [path_of_run("quick", "cpu", chosen, peers=peers, some=some) for some in (False, True)]
    assert files == [ROOT / "results" / "runs" / f"{stem}.jsonl" for stem in (name, f"{name}-some")]


@pytest.mark.parametrize("options", [{}, {"--seed": 1}, {"--impl": ["nested"]}, {"--profile": "default", "--seed": 1}])
def test_a_run_without_every_law_does_not_write_where_one_with_every_law_does(options: dict[str, Any]) -> None:
    nested = get("nested")
    given = {"--device": "cpu", "--profile": "quick", "--impl": [], "--peers": False} | options
    stash = {plugin.LEFT_OUT: {}, plugin.CHOSEN: [SimpleNamespace(implementation=nested)]}
    config: Any = SimpleNamespace(stash=stash, getoption=given.get)
    due = [law for law in all_laws().values() if law.kind == nested.kind and not law.lacks("cpu")]
    rows: Any = [row(law.name, nested.name) for law in due]
    whole, *_ = plugin._destination(config, rows)
    less, *_ = plugin._destination(config, rows[1:])
    assert (whole.stem, less.stem) == (less.stem.removesuffix("-some"), f"{whole.stem}-some")


def test_a_run_is_refused_before_anything_is_judged(here: Path) -> None:
    options = ["--impl", "nested", "--profile", "quick", "-p", "no:cacheprovider", "--results", str(here / "README.md")]
    command = [sys.executable, "-m", "pytest", "conformance", "-k", "keyword_arguments", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"argument --results: it is {here / 'README.md'}, which exists and holds no results" in done.stderr
    assert (here / "README.md").read_text() == "# Mine\n"
