"""A results file is complete, or it is refused with the reason."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from conformance.judging.verdicts import Verdict
from conformance.rows import results_file
from conformance.rows.results_file import VERDICTS, header, is_unexpected, is_untested, read, totals, write
from impls.implementation import VerdictName
from tests.support.synthetic_results import HEADER, ROWS, row


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A complete results file."""
    made = tmp_path / "results" / "conformance-cpu.jsonl"
    write(made, HEADER, ROWS)
    return made


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def rewrite(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_is_written_is_read(path: Path) -> None:
    found = read(path)
    assert found.rows == tuple(ROWS)
    assert found.header == HEADER
    assert found.footer == totals(ROWS)


def test_a_results_file_has_the_verdicts_that_laws_give_and_implementations_declare() -> None:
    assert set(VERDICTS) == set(map(str, Verdict)) == set(get_args(VerdictName))


def test_a_row_that_agrees_and_says_why_it_proves_too_little_is_untested() -> None:
    assert is_untested(row("masks", "nested", "agrees", detail="only 1 of 5 cases prove anything"))
    assert not is_untested(row("masks", "nested", "agrees"))
    assert not is_untested(row("masks", "nested", "diverges", detail="forward: plain 1, here 2"))


def test_the_footer_counts_rows_cases_and_verdicts() -> None:
    zeros = dict.fromkeys(VERDICTS, 0)
    assert totals(ROWS) == zeros | {"rows": 4, "cases": 240, "agrees": 2, "refuses": 1, "diverges": 1, "unexpected": 1}


def test_a_file_without_footer_is_refused(path: Path) -> None:
    rewrite(path, lines_of(path)[:-1])
    with pytest.raises(ValueError, match=r"conformance-cpu\.jsonl: there is no footer"):
        read(path)


@pytest.mark.parametrize("lines", [[], [{"kind": "footer"}]])
def test_a_file_without_header_is_refused(path: Path, lines: list[Any]) -> None:
    with pytest.raises(ValueError, match="first line is not a header"):
        read(rewrite(path, lines))


def test_a_header_that_lacks_something_is_refused(path: Path) -> None:
    first, *others = lines_of(path)
    del first["seed"]
    with pytest.raises(ValueError, match="the header has no seed"):
        read(rewrite(path, [first, *others]))


def test_a_lost_row_is_noticed(path: Path) -> None:
    lines = lines_of(path)
    with pytest.raises(ValueError, match=r"footer counts .*'rows': 4.*holds .*'rows': 3"):
        read(rewrite(path, lines[:1] + lines[2:]))


def test_a_changed_verdict_is_noticed(path: Path) -> None:
    lines = lines_of(path)
    lines[3] |= {"verdict": "agrees"}
    with pytest.raises(ValueError, match="footer counts"):
        read(rewrite(path, lines))


def test_a_row_after_the_footer_is_refused(path: Path) -> None:
    lines = lines_of(path)
    with pytest.raises(ValueError, match="line 7 comes after the footer"):
        read(rewrite(path, [*lines, lines[1]]))


def test_a_second_header_is_refused(path: Path) -> None:
    lines = lines_of(path)
    with pytest.raises(ValueError, match="line 2 is of kind 'header'"):
        read(rewrite(path, [lines[0], *lines]))


def test_a_row_twice_is_refused(path: Path) -> None:
    lines = lines_of(path)
    with pytest.raises(ValueError, match="2 rows are about law subsets, implementation nested, device cpu"):
        read(rewrite(path, [*lines[:2], lines[1], *lines[2:]]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"cases": "60"}, "cases='60'"),
        ({"cases": True}, "cases=True"),
        ({"law": None}, "law=None"),
        ({"verdict": "fine"}, "'fine' as a verdict"),
    ],
)
def test_a_malformed_row_is_refused(path: Path, change: dict[str, Any], reason: str) -> None:
    lines = lines_of(path)
    lines[2] |= change
    with pytest.raises(ValueError, match=f"line 3 has {reason}"):
        read(rewrite(path, lines))


@pytest.mark.parametrize(("text", "reason"), [("{", "line 2 is not JSON"), ("[]", "line 2 is not a JSON object")])
def test_a_line_that_is_not_an_object_is_refused(path: Path, text: str, reason: str) -> None:
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([first, text, *others]))
    with pytest.raises(ValueError, match=reason):
        read(path)


def test_refused_results_do_not_replace_good_ones(path: Path) -> None:
    with pytest.raises(ValueError, match="2 rows are about"):
        write(path, HEADER, [*ROWS, ROWS[0]])
    assert read(path).rows == tuple(ROWS)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_programs_of_several_lines_survive(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    write(path, HEADER, [row("masks", "nested", program="a = 1\n\u2028b = '\x85'\n")])
    assert read(path).rows[0]["program"] == "a = 1\n\u2028b = '\x85'\n"


def test_a_script_in_a_file_of_its_own_is_read_as_if_it_stood_in_the_row(path: Path) -> None:
    script = "a = 1\r\n\u2028b = '\x85'\n"
    (path.parent / "programs").mkdir()
    (path.parent / "programs" / "one.py").write_bytes(script.encode())
    lines = lines_of(path)
    del lines[3]["program"]
    lines[3]["script"] = "programs/one.py"
    rewrite(path, lines)
    assert read(path).rows == (*ROWS[:2], ROWS[2] | {"program": script}, ROWS[3])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gone.py", "line 4 names script gone.py, which cannot be read: .*No such file"),
        (None, "line 4 has script=None, not a value of type str"),
    ],
)
def test_a_script_that_cannot_be_read_is_refused(path: Path, name: str | None, reason: str) -> None:
    lines = lines_of(path)
    lines[3]["script"] = name
    with pytest.raises(ValueError, match=reason):
        read(rewrite(path, lines))


@pytest.mark.parametrize("told", ["580.65.06\n", None])
def test_the_header_tells_a_gpu_and_its_driver(told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_device_module", lambda device: SimpleNamespace(get_device_name=lambda: "NVIDIA H200"))
    monkeypatch.setattr(results_file, "NVIDIA", tmp_path / "version")
    monkeypatch.setenv("PATH", str(tmp_path))  # without nvidia-smi
    if told:
        (tmp_path / "version").write_text(told)
    assert header(0, "quick", "cuda")["machine"]["accelerator"] == f"NVIDIA H200, driver {told.strip() if told else 'unknown'}"


def test_the_header_tells_versions_machine_seed_and_commit() -> None:
    made = header(3, "quick", "cpu")
    assert made["versions"].keys() == {"python", "torch", "hypothesis", "pytest"}
    assert made["machine"]["processor"]
    assert made["machine"]["cpus"] >= 1
    assert made["machine"]["accelerator"] is None
    assert (made["seed"], made["profile"]) == (3, "quick")
    assert made["suite"].keys() == {"commit", "dirty"}


def test_a_run_that_knows_better_says_what_is_unexpected() -> None:
    better = row("subsets", "mine:ck", "agrees", expected="refuses", as_declared=True)
    vacuous = row("subsets", "nested", as_declared=False)
    assert not is_unexpected(better)
    assert is_unexpected(vacuous)
