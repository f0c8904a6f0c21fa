"""Which published results are older than the code: what the command says of made-up ones, and its status."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benches import staleness
from benches.budget import command as budget
from benches.compare import compiled, compiled_report, compiled_steps, contenders, fingerprint_roots
from benches.compare import report as compare_page
from benches.overhead import command as overhead
from benches.overhead import tables
from benches.papers import NAMES
from benches.papers import page as papers
from benches.published import store
from conformance.judging.law import all_laws
from conformance.provenance import fingerprints, measured_code, syntax_trees
from conformance.provenance.fingerprints import Sources
from conformance.provenance.staleness import BEGIN, Now
from conformance.provenance.syntax_trees import Module
from conformance.reports import report
from conformance.rows import torch_releases
from conformance.rows.results_file import ROOT, read, write
from reprise import results
from reprise.command_line import main
from tests.support.repositories import commit, git
from tests.support.synthetic_results import HEADER, row

LAWS = {"keyword_arguments": "structure", "dropout_masks_are_replayed": "rng"}
OF_GRAPH = "a_backward_after_an_error_is_right"
ALTERED = "\nprint('altered')\n"  # what a module does, and so what all do that refer to anything in it


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this code, and results that were measured on it, of two laws and of some contenders; to be copied."""
    made = tmp_path_factory.mktemp("measured")
    for package in ("impls", "conformance", "benches"):
        shutil.copytree(ROOT / package, made / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", made)
    header = {**HEADER, "suite": {"commit": commit(made), "dirty": False}}
    sources = Sources(made)
    rows = [row(law, impl, family=family) for law, family in LAWS.items() for impl in ("nested", "legacy")]
    rows = [{**one, "fingerprints": measured_code.of_row(sources, one, header)} for one in rows]
    write(made / "results" / "conformance-cpu.jsonl", header, rows)
    compared = [contenders.PLAIN, contenders._built_in("nested"), contenders._built_in("legacy")]
    table = {
        **header,
        "size": "S",
        "device": "cpu",
        "rows": [{"contender": "nested", "workload": "chain"}],
        "fingerprints": fingerprint_roots.of_all(sources, compared, ["chain", "lstm"]),
    }
    store(made / "results" / "compare-cpu.json", table)
    commit(made, "results")
    return made


@pytest.fixture(scope="module")
def parsed() -> Callable[..., Module]:
    """Most files are the same in every copy: each text is parsed once."""
    return functools.cache(syntax_trees.parsed)


@pytest.fixture
def root(measured: Path, parsed: Callable[..., Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the repository, in which anything may be changed."""
    monkeypatch.setattr(staleness, "all_laws", lambda: {name: all_laws()[name] for name in LAWS})
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(fingerprints, "parsed", parsed)
    return Path(shutil.copytree(measured, tmp_path, dirs_exist_ok=True))


def told(root: Path, capsys: pytest.CaptureFixture[str], status: int = 1) -> str:
    """What the command says, with this status."""
    capsys.readouterr()
    assert main(["published"]) == status
    captured = capsys.readouterr()
    return captured.err if status else captured.out


def alter(root: Path, name: str) -> None:
    path = root / name
    path.write_text(path.read_text(encoding="utf-8") + ALTERED, encoding="utf-8")


def restored(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Store the comparison with a change."""
    path = root / "results" / "compare-cpu.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    store(path, content)


def test_results_of_the_code_that_is_there_pass(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = "results/conformance-cpu.jsonl, results/compare-cpu.json"
    assert told(root, capsys, 0) == f"of this code are 2 of 2 published results: {names}\n"


def test_code_that_was_not_measured_may_change(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("conformance/reports/report.py", "conformance/page/page.py", "conformance/laws/test_costs.py"):
        alter(root, name)
    (root / "impls" / "nested" / "api.py").write_text(f"# A comment.\n{(root / 'impls' / 'nested' / 'api.py').read_text()}")
    told(root, capsys, 0)


def test_an_implementation_that_changed_is_named_with_what_measures_it_anew(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alter(root, "impls/nested/region.py")
    assert told(root, capsys) == (
        "results/conformance-cpu.jsonl:\n"
        "  2 of 4 rows were measured on older code:\n"
        "  implementation: nested\n"
        "  measured anew by: nox -s conformance\n"
        "results/compare-cpu.json:\n"
        "  contender: nested, whose implementation is older than the code\n"
        "  measured anew by: nox -s compare -- --write\n"
    )


def test_what_is_older_is_no_failure_where_it_is_only_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(root, "impls/nested/region.py")
    assert main(["published", "--tell"]) == 0
    assert "  implementation: nested\n" in capsys.readouterr().err
    restored(root, lambda one: one.pop("suite"))
    assert main(["published", "--tell"]) == 2  # what cannot be read is another matter


def test_a_law_that_changed_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(root, "conformance/laws/test_rng.py")
    found = told(root, capsys)
    assert "  2 of 4 rows were measured on older code:\n  law: dropout_masks_are_replayed\n" in found
    assert "compare" not in found


def test_a_judge_that_changed_makes_all_laws_older(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alter(root, "conformance/judging/verdicts.py")
    assert "  4 of 4 rows were measured on older code:\n  law: all 2, dropout" in told(root, capsys)


def test_a_workload_that_changed_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "benches" / "models" / "workloads.py"
    text = path.read_text(encoding="utf-8")
    assert text.count('Kind("layers of an LSTM"') == 1
    path.write_text(text.replace('Kind("layers of an LSTM"', 'Kind("other layers"'), encoding="utf-8")
    assert "\n  workload: lstm, older than the code\n" in told(root, capsys)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda one: one["suite"].update(commit="6f9ca674b2" * 4), "commit 6f9ca674b2 is not in this repository"),
        (lambda one: one["suite"].update(dirty=True), "it was measured with changes that are not committed"),
        (
            lambda one: one.pop("fingerprints"),
            "it has no fingerprint, so it was measured before there were any: contender nested; ",
        ),
    ],
)
def test_what_nobody_can_trace_fails(
    change: Callable[[dict[str, Any]], object], said: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restored(root, change)
    found = told(root, capsys)
    assert f"results/compare-cpu.json:\n  {said}" in found
    assert "conformance" not in found


def test_rows_without_fingerprints_are_counted(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = root / "results" / "conformance-cpu.jsonl"
    found = read(path)
    write(path, found.header, [{**one, "fingerprints": {}} if one["impl"] == "legacy" else one for one in found.rows])
    assert "\n  2 of 4 rows have no fingerprint, so they were measured before there were any\n" in told(root, capsys)


def test_a_law_that_is_new_must_be_judged(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    more = {name: all_laws()[name] for name in (*LAWS, "containers_as_arguments", OF_GRAPH)}
    assert more[OF_GRAPH].kind == "graph"  # which is nothing to these implementations
    monkeypatch.setattr(staleness, "all_laws", lambda: more)
    assert "\n  not judged by every law that there is: containers_as_arguments\n" in told(root, capsys)


def test_a_commit_of_another_history_is_none(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    git(root, "checkout", "--quiet", "--orphan", "elsewhere")
    commit(root, "squashed")
    assert told(root, capsys).count("is not in the history of this checkout") == 2


def test_marks_that_are_no_longer_due_are_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "README.md").write_text(BEGIN, encoding="utf-8")
    assert "README.md: has marks of results that are no longer older than the code: nox -s published" in told(root, capsys)


def test_a_file_that_is_no_result_is_an_error(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    restored(root, lambda one: one.pop("suite"))
    assert "results/compare-cpu.json is no published result: KeyError: 'suite'" in told(root, capsys, 2)


@pytest.mark.parametrize(
    ("name", "content", "command"),
    [
        ("overhead-cpu.json", {}, "python -m reprise overhead --write"),
        ("budget.json", {}, "python -m reprise budget --write"),
        ("layer-cuda.json", {}, "python -m reprise layer --write"),
        ("offload-cuda.json", {"workload": "lstm", "size": "M"}, "python -m reprise offload --workload lstm --size M --write"),
        ("compare-fake.json", {"size": "XL", "device": "fake"}, "nox -s compare -- --size XL --write"),
        ("compare-cuda.json", {"size": "L", "device": "cuda"}, "nox -s compare -- --size L --device cuda --write"),
        ("compiled-cpu.json", {"size": "S", "device": "cpu"}, "nox -s compare -- --compiled --write"),
        ("papers/chen2016.json", {}, "nox -s reproduce -- chen2016"),
    ],
)
def test_each_table_has_its_command(name: str, content: dict[str, Any], command: str) -> None:
    assert staleness._measured_anew(Path("results") / name, content) == command


@pytest.mark.parametrize(
    ("session", "torch", "device", "command"),
    [
        ("conformance", "2.13.0+cpu", "cpu", "nox -s conformance"),
        ("peers", "9.1.0+cpu", "cuda", "nox -s peers -- --torch 9.1.0 --device cuda"),
    ],
)
def test_each_run_has_its_command(
    session: str, torch: str, device: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_releases, "pinned", lambda: "2.13.0")
    path = tmp_path / "some.jsonl"
    write(path, {**HEADER, "versions": {"torch": torch}}, [row("subsets", "nested", device=device)])
    assert staleness._judged_anew(session, read(path)) == command


def test_marks_are_written_wherever_results_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(ROOT / "README.md", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("runs", "soak"))
    monkeypatch.setattr(Now, "reasons", lambda *_: ["law"])
    monkeypatch.setattr(Now, "_of_entry", lambda *_: ["workload"])
    staleness.mark(tmp_path)
    sections = [one.SECTION.section for one in (compare_page, tables, budget)]
    for section in [report.COUNTS, report.MATRIX, *sections]:
        text = (tmp_path / section.page).read_text(encoding="utf-8")
        assert "† measured on older code" in text[text.index(section.begin) : text.index(section.end)]
    assert tmp_path / "results" / "papers" / "README.md" in staleness._still_marked(tmp_path)
    checks = budget.SECTION.check, tables.SECTION.check, compare_page.check, compiled_report.SECTION.check
    assert [check(tmp_path) for check in checks] == [""] * 4


def test_everything_that_is_measured_has_code() -> None:
    sources = Sources()
    lists = [*overhead.CODE.values(), budget.CODE, *([f"benches.papers.{name}:PAPER"] for name in NAMES)]
    assert all(sources.closure(roots) for roots in lists)
    for name, make in contenders.offered("fake").items():
        try:
            one = make()
        except ValueError:  # it cannot be had here
            continue
        assert fingerprint_roots.of_contender(sources, one, {})["of"], name
    picked = [compiled_steps.offered()[name]() for name in ("plain", "nested", "budget-0")]
    found = compiled.fingerprints(sources, picked, ["attention"])
    assert [*found["contender"]] == ["plain", "nested", "budget-0"]
    assert found["workload"]["attention"]["workload"]


def test_what_may_not_be_published_is_put_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert papers.place() == papers.RESULTS
    monkeypatch.setattr(measured_code.Origin, "fault", lambda _: "there are uncommitted changes")
    assert papers.place() == ROOT / "results" / "runs" / "papers"
