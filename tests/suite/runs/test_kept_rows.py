"""``--older``: which rows of published results a run keeps, and that it judges all others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import impls
from conformance.judging.explorer import declaration
from conformance.judging.law import LAWS, all_laws
from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources
from conformance.rows import results_file
from conformance.rows.results_file import ROOT, totals
from conformance.runs import plugin
from conformance.runs.kept_rows import ACCEPTED, WORKER, KeptRows, kept_rows
from tests.support.synthetic_results import row

SOURCES = Sources(ROOT)
HEADER = {
    "versions": {"torch": "2.13.0", "python": "3.11.1"},
    "machine": {"processor": "one", "accelerator": None},
    "seed": 0,
    "profile": "default",
    "suite": {"commit": "0" * 40, "dirty": False},
    "date": "2026-11-01T00:00:00+00:00",
}
LAW_NAMES = "keyword_arguments", "dropout_masks_are_replayed"
CHOSEN: Any = [SimpleNamespace(implementation=one, claims=one) for one in map(impls.get, ("nested", "reentrant"))]


def judged(law: str, impl: str) -> dict[str, Any]:
    """A row as a run of the present code gives it."""
    claims = impls.get(impl)
    its = all_laws()[law]
    one = row(law, impl, statement=its.statement, family=its.family, as_declared=True, declaration=declaration(its, claims))
    return {**one, "fingerprints": measured_code.of_row(SOURCES, one, HEADER)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Results of two laws and two implementations, all of this code."""
    path = tmp_path / "conformance-cpu.jsonl"
    results_file.write(
        path, {"kind": "header", **HEADER}, [judged(law, impl) for law in LAW_NAMES for impl in ("nested", "reentrant")]
    )
    return path


def kept(path: Path, **changes: Any) -> set[tuple[str, str]]:
    return set(kept_rows(path, {**HEADER, **changes}, SOURCES, CHOSEN).rows)


def test_rows_of_the_present_code_are_kept_with_where_they_come_from(path: Path) -> None:
    found = kept_rows(path, {**HEADER, "date": "later", "suite": {"commit": "1" * 40, "dirty": False}}, SOURCES, CHOSEN)
    assert set(found.rows) == {(law, impl) for law in LAW_NAMES for impl in ("nested", "reentrant")}
    assert {one["measured"]["commit"] for one in found.rows.values()} == {"0" * 40}
    assert "4 of 4 rows" in found.pytest_report_header()


def test_where_a_row_was_measured_stays_when_it_is_kept_again(path: Path) -> None:
    first = {"commit": "2" * 40, "date": "first"}
    rows = [{**one, "measured": first} for one in results_file.read(path).rows]
    results_file.write(path, {"kind": "header", **HEADER}, rows)
    assert [one["measured"] for one in kept_rows(path, HEADER, SOURCES, CHOSEN).rows.values()] == [first] * 4


@pytest.mark.parametrize(
    "change",
    [
        lambda one: {"fingerprints": {**one["fingerprints"], "law": "older"}},
        lambda one: {"fingerprints": {**one["fingerprints"], "implementation": "older"}},
        lambda one: {"fingerprints": {}},
        lambda one: {"declaration": "another"},
        lambda one: {"statement": "Another statement."},
        lambda one: {"family": "another"},
        lambda one: {"as_declared": False},
        lambda one: {"program_in": "conformance-cpu.jsonl"},
        lambda one: {"law": "a_law_that_is_no_more"},
        lambda one: {"impl": "legacy"},
    ],
)
def test_what_might_come_out_otherwise_is_judged_again(change: Any, path: Path) -> None:
    first, *rest = results_file.read(path).rows
    results_file.write(path, {"kind": "header", **HEADER}, [{**first, **change(first)}, *rest])
    assert kept(path) == {(one["law"], one["impl"]) for one in rest}


def test_of_a_declaration_only_what_the_law_is_about_counts(path: Path) -> None:
    rows = [{**one, "fingerprints": {**one["fingerprints"], "declaration": "older"}} for one in results_file.read(path).rows]
    results_file.write(path, {"kind": "header", **HEADER}, rows)
    found = kept_rows(path, HEADER, SOURCES, CHOSEN).rows
    assert len(found) == 4
    assert "older" not in {one["fingerprints"]["declaration"] for one in found.values()}


@pytest.mark.parametrize(
    "changes", [{"seed": 1}, {"profile": "quick"}, {"machine": {"processor": "two"}}, {"versions": {"torch": "2.14.0"}}]
)
def test_another_machine_release_or_seed_judges_all(changes: dict[str, Any], path: Path) -> None:
    found = kept_rows(path, {**HEADER, **changes}, SOURCES, CHOSEN)
    assert not found.rows
    assert f"everything is judged: {path} has another {next(iter(changes))}" in found.pytest_report_header()


def test_what_was_measured_with_changes_that_are_not_committed_is_judged_again(path: Path) -> None:
    rows = results_file.read(path).rows
    results_file.write(path, {"kind": "header", **HEADER, "suite": {"commit": "0" * 40, "dirty": True}}, rows)
    assert not kept(path)


def test_without_results_all_is_judged(tmp_path: Path) -> None:
    assert not kept(tmp_path / "none.jsonl")
    (tmp_path / "some.jsonl").write_text("no results")
    with pytest.raises(ValueError, match="is not JSON"):
        kept(tmp_path / "some.jsonl")


def test_a_declaration_is_that_of_the_law_unless_programs_depend_on_all() -> None:
    all_laws()
    nested = impls.get("nested")
    law = next(one for one in LAWS.values() if one.name in nested.known and not callable(one.programs))
    other = next(name for name in nested.known if name != law.name)
    less = replace(nested, known={name: limit for name, limit in nested.known.items() if name != other})
    without = replace(nested, known={name: limit for name, limit in nested.known.items() if name != law.name})
    assert declaration(law, less) == declaration(law, nested) != declaration(law, without)
    assert declaration(law, replace(nested, capabilities=frozenset())) != declaration(law, nested)
    drawn = next(one for one in LAWS.values() if callable(one.programs) and one.kind == "checkpoint" and one.name != other)
    assert declaration(drawn, less) != declaration(drawn, nested)


def item(law: str | None, impl: str = "nested") -> Any:
    function = SimpleNamespace(law=all_laws()[law]) if law else SimpleNamespace()
    params = {"hold": next(one for one in CHOSEN if one.implementation.name == impl)} if law else {}
    return SimpleNamespace(function=function, callspec=SimpleNamespace(params=params))


def test_tests_of_kept_rows_are_left_out_by_workers_too(path: Path) -> None:
    found = kept_rows(path, HEADER, SOURCES, CHOSEN[:1])
    worker, node = KeptRows(), SimpleNamespace(workerinput={})
    found.pytest_configure_node(node)
    worker.pytest_configure(SimpleNamespace(workerinput=node.workerinput))  # type: ignore[arg-type]
    assert [*node.workerinput] == [WORKER]
    for one in (found, worker):
        items = [item(LAW_NAMES[0]), item(LAW_NAMES[0], "reentrant"), item("autocast_is_forwards"), item(None)]
        rest = items[1:]
        one.pytest_collection_modifyitems(items)
        assert items == rest


def test_kept_rows_and_new_ones_are_in_the_order_of_a_run_of_all(path: Path) -> None:
    found = kept_rows(path, HEADER, SOURCES, CHOSEN)
    new = found.rows.pop((LAW_NAMES[0], "nested"))
    joined = found.joined([new], ["reentrant", "nested"])
    laws = sorted(LAW_NAMES, key=[*all_laws()].index)
    assert [(one["law"], one["impl"]) for one in joined] == [(law, impl) for law in laws for impl in ("reentrant", "nested")]
    assert totals(joined)["rows"] == 4
    assert KeptRows().joined([new], []) == [new]


def test_a_run_without_anything_older_is_no_failure(path: Path) -> None:
    found, session = kept_rows(path, HEADER, SOURCES, CHOSEN), SimpleNamespace(exitstatus=pytest.ExitCode.NO_TESTS_COLLECTED)
    found.pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus == 0
    session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED
    KeptRows().pytest_sessionfinish(session)  # type: ignore[arg-type]
    assert session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.mark.parametrize(
    "given",
    [{"--impl": ["nested"]}, {"--seed": 1}, {"--profile": "quick"}, {"--results": "x"}, {"--device": "cuda"}, {"-k": "x"}],
)
def test_it_is_for_a_run_that_is_published(given: dict[str, Any]) -> None:
    options = {"--older": True, "--profile": "default", "--device": "cpu", "--seed": 0, **given}
    config: Any = SimpleNamespace(getoption=options.get, option=SimpleNamespace(keyword=given.get("-k", "")))
    with pytest.raises(ValueError, match=r"^--older is for a complete run on the CPU") as caught:
        plugin._kept(config)
    assert ACCEPTED in str(caught.value)
