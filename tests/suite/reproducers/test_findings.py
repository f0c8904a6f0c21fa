"""A database of findings counts what is met again, forgets nothing, and is refused with the reason when it is damaged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from conformance.reproducers import replay
from conformance.reproducers.findings import Finding, Findings, opened, read
from reprise.command_line import main

FOUND = Finding(
    law="masks", impl="older", device="cpu", expected="agrees", verdict="diverges", detail="other", program="sys.exit(1)",
    test="laws/test_rng.py::test_masks[older]", seed=3, profile="round", versions={"torch": "2.13.0"},
    suite={"commit": "0123"}, first_seen="2026-01-01", last_seen="2026-01-01",
)  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with two findings."""
    database = Findings(tmp_path / "findings.jsonl")
    assert database.add(FOUND)
    assert database.add(replace(FOUND, law="other"))
    return database.path


def test_what_is_kept_is_read(path: Path) -> None:
    assert [finding.law for finding in read(path).open] == ["masks", "other"]
    assert read(path).open[0] == FOUND
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_finding_that_is_met_again_is_counted(path: Path) -> None:
    assert not read(path).add(replace(FOUND, seed=4, detail="another number", last_seen="2026-01-02"))
    first, second = read(path).open
    assert (first.times, first.first_seen, first.last_seen) == (2, "2026-01-01", "2026-01-02")
    assert second.times == 1


@pytest.mark.parametrize("change", [{"impl": "newer"}, {"verdict": "crashes"}, {"program": "pass"}, {"device": "cuda"}])
def test_another_implementation_verdict_program_or_device_is_another_finding(path: Path, change: dict[str, Any]) -> None:
    assert read(path).add(replace(FOUND, **change))
    assert len(read(path).open) == 3


def test_what_is_mended_is_kept_and_open_again_when_it_comes_back(path: Path) -> None:
    read(path).mend(FOUND, "2026-01-03")
    assert [finding.law for finding in read(path).open] == ["other"]
    assert read(path).by_identity[FOUND.identity].mended == "2026-01-03"
    assert read(path).add(FOUND)
    assert read(path).by_identity[FOUND.identity].mended == ""
    assert read(path).by_identity[FOUND.identity].times == 2


def test_open_findings_are_replayed(path: Path) -> None:
    read(path).mend(FOUND, "2026-01-03")
    read(path).add(replace(FOUND, law="without a script", program=""))
    assert [row["law"] for row in replay.scripts(path)] == ["other"]


def test_a_line_that_was_cut_is_refused(path: Path) -> None:
    path.write_text(path.read_text()[:-20])
    with pytest.raises(ValueError, match=r"findings\.jsonl: line 2 is not JSON"):
        read(path)


@pytest.mark.parametrize("command", ["merge", "replay", "report", "soak"])
def test_a_file_that_is_not_utf_8_is_named(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"kind": "é"}\n'.encode("latin-1"))
    name = str(latin)
    arguments = {
        "merge": ["-", name],
        "report": ["--show", "nested", "--results", name],
        "soak": ["--findings", name],
    }
    assert main([command, *arguments.get(command, [name])]) == 2
    told = capsys.readouterr().err
    assert f"{name}: it is not UTF-8 text: " in told
    assert ("--results: " in told) is (command == "report")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "row"}, "is not of kind 'finding'"),
        ({"seed": "3"}, "has seed='3', not an integer"),
        ({"times": True}, "has times=True, not an integer"),
        ({"law": None}, "has law=None, not a string"),
        ({"colour": "red"}, r"lacks \[\] and has \['colour'\] besides"),
    ],
)
def test_a_malformed_finding_is_refused(path: Path, change: dict[str, Any], reason: str) -> None:
    first, second = map(json.loads, path.read_text().splitlines())
    path.write_text(f"{json.dumps(first)}\n{json.dumps(second | change)}\n")
    with pytest.raises(ValueError, match=f"line 2 {reason}"):
        read(path)


def test_a_finding_twice_is_refused(path: Path) -> None:
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ValueError, match="line 3 repeats the finding of an earlier line: older, law masks"):
        read(path)


def test_two_runs_do_not_write_one_database(path: Path) -> None:
    with opened(path) as database:
        assert len(database.by_identity) == 2
        with pytest.raises(ValueError, match="is in use by another run"), opened(path):
            pass
    with opened(path):
        pass
