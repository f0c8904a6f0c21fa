"""Merging keeps every run once, adds up what may be added up, and reports where runs contradict each other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conformance.reports import matrix, merge, report
from conformance.reports.merge import conflicts, united
from conformance.reproducers import replay
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import Results, Row, read, read_all, totals, write
from tests.support.synthetic_results import HEADER, ROWS, row


def made(path: Path, *rows: Row, **header: Any) -> Path:
    """A results file with a header that differs in these."""
    write(path, HEADER | header, rows or ROWS)
    return path


def run(*rows: Row, **header: Any) -> Results:
    return Results(Path("none"), HEADER | header, rows or tuple(ROWS), totals(rows or ROWS))


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return made(tmp_path / "one.jsonl")


def test_cases_of_other_seeds_are_added_up() -> None:
    (found,) = united([run(), run(seed=8, date="2026-11-22")])
    assert [cell["cases"] for cell in found.rows] == [120] * len(ROWS)
    assert found.rows[2]["counts"] == {"agrees": 114, "diverges": 6}
    assert found.footer == totals(found.rows)
    assert conflicts([run(), run(seed=8)]) == []


def test_the_same_programs_count_once() -> None:
    """Another machine with the same seed drew the same programs; of two profiles the larger one counts."""
    fewer = [cell | {"cases": 12} for cell in ROWS]
    (found,) = united([run(*fewer, profile="quick"), run(), run(date="2026-11-23")])
    assert [cell["cases"] for cell in found.rows] == [60] * len(ROWS)


def test_the_same_file_twice_is_one_run(one: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert merge.merge(out, [one, one])[1]
    (kept,) = read_all(out)
    assert (kept.header, kept.rows) == (HEADER, tuple(ROWS))
    assert read(out).rows == tuple(ROWS)


def test_the_order_does_not_matter_and_merging_again_changes_nothing(one: Path, tmp_path: Path) -> None:
    two = made(tmp_path / "two.jsonl", seed=8)
    three = made(tmp_path / "three.jsonl", versions={"python": "3.11.9", "torch": "2.14.0"})
    first, second, third = (tmp_path / f"{name}.jsonl" for name in ("first", "second", "third"))
    assert merge.merge(first, [one, two, three])[1]
    assert merge.merge(second, [three, two])[1]
    assert merge.merge(third, [second, one, first])[1]
    assert first.read_text() == third.read_text()
    assert len(read_all(first)) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"versions": {"python": "3.11.9", "torch": "2.14.0"}},
        {"versions": {"python": "3.12.1", "torch": "2.13.0+cpu"}},
        {"suite": {"commit": "fedcba9876543210", "dirty": False}},
        {"suite": {"commit": "0123456789abcdef", "dirty": True}},
    ],
)
def test_other_versions_stand_side_by_side_and_may_differ(change: dict[str, Any]) -> None:
    runs = [run(), run(row("masks", "older", "crashes"), seed=8, **change)]
    assert [len(found.rows) for found in united(runs)] == [len(ROWS), 1]
    assert conflicts(runs) == []


def test_another_device_is_no_conflict() -> None:
    runs = [run(row("masks", "older")), run(row("masks", "older", "crashes", device="cuda"), date="2026-11-23")]
    assert conflicts(runs) == []
    assert [cell["device"] for found in united(runs) for cell in found.rows] == ["cpu", "cuda"]


@pytest.mark.parametrize(
    "other",
    [
        row("masks", "older", "diverges"),
        row("masks", "older", "agrees", expected="refuses", as_declared=True),
        row("masks", "older", as_declared=False),
    ],
)
def test_runs_that_do_not_say_the_same_are_reported_and_both_kept(other: dict[str, Any], tmp_path: Path) -> None:
    one, two = made(tmp_path / "one.jsonl", row("masks", "older")), made(tmp_path / "two.jsonl", other, seed=8)
    out = tmp_path / "out.jsonl"
    lines, agree = merge.merge(out, [one, two])
    assert not agree
    assert "conflict: older on cpu, law masks, torch 2.13.0+cpu, python 3.11.9, suite at 0123456789" in lines
    assert "  agrees, declared agrees: 60 cases, seed 7, profile default, on Xeon" in "\n".join(lines)
    (found,) = united(read_all(out))
    assert [(cell["verdict"], cell["cases"]) for cell in found.rows] == [("agrees", 60), (other["verdict"], 60)]


def test_the_matrix_shows_conflicts() -> None:
    (found,) = united([run(row("masks", "older")), run(row("masks", "older", "diverges"), seed=8)])
    assert "✓&nbsp;1&nbsp; ≠&nbsp;1&nbsp; conflict&nbsp;1" in matrix.markdown(found)
    assert "seed 7" in matrix.markdown(found)
    assert "seed 8" in matrix.markdown(found)
    assert "✓ 60 ≠ 60" in matrix.terminal(found.rows)


def test_the_shortest_program_is_shown() -> None:
    long, short = (row("masks", "older", "diverges", program=text) for text in ("print('a long one')", "print(1)"))
    none = row("masks", "older", "diverges")
    (found,) = united([run(long), run(short, seed=8), run(none, seed=9)])
    assert [(cell["program"], cell["cases"]) for cell in found.rows] == [("print(1)", 180)]


def test_laws_and_implementations_that_nobody_here_knows_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    other = made(tmp_path / "other.jsonl", row("a_law_of_tomorrow", "somebody:else"))
    assert merge.merge(out, [other])[1]
    assert read(out).rows[0]["law"] == "a_law_of_tomorrow"


def test_a_merged_file_is_shown_and_replayed(one: Path, tmp_path: Path) -> None:
    fault = row("masks", "older", "diverges", program="sys.exit(1)")
    two, out = made(tmp_path / "two.jsonl", fault, seed=8), tmp_path / "out.jsonl"
    three = made(tmp_path / "three.jsonl", fault, seed=9)
    assert not merge.merge(out, [one, two, three])[1]
    assert [cell["program"] for cell in replay.scripts(out)] == ["sys.exit(1)"]
    assert "sys.exit(1)" in report.show("older", "masks", out)


def test_without_a_file_to_write_it_only_reports(one: Path, tmp_path: Path) -> None:
    (told,), agree = merge.merge(None, [one])
    assert agree
    assert told.endswith(": 1 runs, 4 rows, 240 cases")
    assert [path.name for path in tmp_path.iterdir()] == ["one.jsonl"]


@pytest.fixture
def merged(one: Path, tmp_path: Path) -> list[str]:
    """The lines of a file with two runs of four rows."""
    out = tmp_path / "out.jsonl"
    merge.merge(out, [one, made(tmp_path / "two.jsonl", seed=8)])
    return out.read_text().splitlines()


def changed(line: str, **change: Any) -> str:
    return json.dumps(json.loads(line) | change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: lines[:-1], "there is no footer, so the run did not end"),
        (lambda lines: lines[:7], "holds 1 runs, and 2 by its first line"),
        (lambda lines: lines[:1], "holds 0 runs, and 2 by its first line"),
        (lambda lines: [*lines, lines[1]], "there is no footer"),
        (lambda lines: [*lines[:2], *lines[1:]], "line 3 is of kind 'header', not 'row'"),
        (lambda lines: [*lines[:7], *lines[8:]], "line 8 is not a header"),
        (lambda lines: [*lines[:9], *lines[10:]], "the footer counts"),
        (lambda lines: [*lines[:-1], lines[-1][:20]], "line 13 is not JSON"),
        (lambda lines: [changed(lines[0], format=2), *lines[1:]], "it is of format 2; this suite reads format 1"),
        (lambda lines: [lines[0], changed(lines[1], format=2), *lines[2:]], "it is of format 2; this suite reads format 1"),
        (lambda lines: lines[1:], "line 7 comes after the footer"),
    ],
)
def test_a_damaged_file_is_refused_and_nothing_is_written(change: Any, reason: str, merged: list[str], tmp_path: Path) -> None:
    damaged, out = tmp_path / "damaged.jsonl", tmp_path / "never.jsonl"
    damaged.write_text("".join(f"{line}\n" for line in change(merged)))
    with pytest.raises(InvalidOption, match=re.escape(reason)):
        merge.merge(out, [damaged])
    assert not out.exists()


def test_a_file_of_several_runs_is_not_one(merged: list[str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="2 runs are merged in it; one is wanted here"):
        read(tmp_path / "out.jsonl")
