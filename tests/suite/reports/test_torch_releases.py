"""Results of another release of torch: they have a file of their own, and say in what they differ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from conformance.reports import report
from conformance.reports.matrix import differences
from conformance.rows.results_file import ROOT, Results, Row
from conformance.rows.torch_releases import counterpart, pinned, without_repeated_programs
from conformance.runs.destination import published_path
from tests.support.synthetic_results import HEADER, ROWS, row

OTHER = HEADER | {"versions": HEADER["versions"] | {"torch": "2.15.0+cu130"}}


def results(rows: Sequence[Row], header: Row = HEADER, name: str = "conformance-cpu.jsonl") -> Results:
    return Results(Path(name), header, tuple(rows), {})


def test_the_pinned_release_is_the_one_that_nox_installs() -> None:
    assert f"torch=={pinned()}" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("group", ['["torch>=2.11"]', '["torch==2.13.0", "numpy==2"]', '["numpy==2"]', "[]"])
def test_a_release_that_is_not_pinned_is_an_error(group: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[dependency-groups]\ntorch = {group}\n")
    with pytest.raises(ValueError, match=r"accepted is one requirement, torch==RELEASE"):
        pinned(tmp_path / "pyproject.toml")


def test_another_release_replaces_no_results_of_the_pinned_one() -> None:
    ours, built = (published_path("cpu", peers=False, torch=version) for version in (pinned(), f"{pinned()}+cu130"))
    other, peers = (published_path("cpu", peers=peers, torch="9.1.0+cpu") for peers in (False, True))
    assert ours == built == published_path("cpu", peers=False)
    assert (other.name, peers.name) == ("conformance-cpu-torch-9.1.0.jsonl", "peers-cpu-torch-9.1.0.jsonl")


def test_results_of_another_device_or_implementation_are_no_counterpart() -> None:
    other = results([*ROWS], OTHER)
    assert counterpart(other, [results([row("subsets", "nested", device="cuda")]), results(ROWS[:1]), other]) is None
    assert counterpart(other, [results([row("subsets", "older")]), first := results(ROWS)]) is first


def test_a_program_of_the_same_verdict_is_stored_once() -> None:
    changed = [ROWS[1], row("masks", "nested", "crashes", program="print()"), row("new", "nested", "hangs", program="print()")]
    rows = without_repeated_programs(changed, results([*ROWS]))
    assert [one["program"] for one in rows] == ["", "print()", "print()"]
    assert rows[0]["program_in"] == "conformance-cpu.jsonl"


def test_docs_say_in_what_another_release_differs() -> None:
    same = differences(results([*ROWS], OTHER), results([*ROWS]))
    assert same.endswith(" 4 of 4 verdicts with torch 2.15.0 are those with torch 2.13.0.")
    text = differences(results([row("masks", "nested", "crashes"), *ROWS[:2]], OTHER), results([*ROWS]))
    assert " 2 of 3 verdicts with torch 2.15.0 are those with torch 2.13.0:\n" in text
    assert text.endswith("| masks | `nested` | diverges | crashes |\n\nJudged with torch 2.13.0 alone (1 verdict): `masks`.")
    new = differences(results([row("new", "nested"), *ROWS], OTHER), results([*ROWS]))
    assert " 4 of 4 verdicts with torch 2.15.0 are those with torch 2.13.0.\n" in new
    assert new.endswith("\n\nJudged with torch 2.15.0 alone (1 verdict): `new`.")


def test_another_release_has_no_matrix_of_its_own() -> None:
    ours, other = results([*ROWS]), results([*ROWS], OTHER, "conformance-cpu-torch-2.15.0.jsonl")
    assert report._elsewhere(other, [ours]).count("|") == 0
    assert report._elsewhere(ours, []).count("|") > 10
