"""The matrix and the limits are made from results alone, and a stale section is noticed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import impls
from conformance.judging.law import all_laws
from conformance.provenance.staleness import unmarked
from conformance.reports import law_catalogue, matrix, report, verdict_counts
from conformance.reports.generated_section import Section
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import VERDICTS, Results, write
from tests.support.generated_pages import write_places
from tests.support.synthetic_results import HEADER, ROWS, row


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with results, and pages that were written from them."""
    write(tmp_path / "results" / "conformance-cpu.jsonl", HEADER, ROWS)
    write_places(tmp_path)
    report.write(tmp_path)
    return tmp_path


def read(root: Path, section: Section) -> str:
    """The page of a section, without marks at older results."""
    return unmarked((root / section.page).read_text())


@pytest.mark.parametrize("without_rich", [False, True])
def test_the_terminal_shows_laws_by_implementation(monkeypatch: pytest.MonkeyPatch, without_rich: bool) -> None:
    if without_rich:
        monkeypatch.setitem(sys.modules, "rich", None)
    lines = matrix.terminal(ROWS).splitlines()
    shown = [line.replace("│", " ").split() for line in lines]
    assert ["subsets", "✓", "60", "–", "60"] in shown
    assert ["masks", "≠", "3/60*", "✓", "60"] in shown
    assert ["rng"] in shown
    assert lines[-1] == "verdicts: 2 agrees, 1 refuses, 1 diverges (240 cases); 1 unexpected"


def test_colour_adds_nothing_but_colour() -> None:
    pytest.importorskip("rich")
    from rich.text import Text

    colored = matrix.terminal(ROWS, color=True)
    assert "\x1b[" in colored
    without = [line.rstrip() for line in Text.from_ansi(colored).plain.splitlines()]
    assert without == matrix.terminal(ROWS).splitlines()


def test_every_verdict_has_a_symbol_of_its_own() -> None:
    assert matrix.SYMBOLS.keys() == matrix.STYLES.keys() == set(VERDICTS)
    assert len(set(matrix.SYMBOLS.values())) == len(VERDICTS)


def test_each_device_has_a_table_of_its_own() -> None:
    text = matrix.terminal([*ROWS, row("masks", "nested", device="cuda")])
    assert text.index("device cpu") < text.index("device cuda")


def test_the_pace_tells_the_slowest_laws_over_all_implementations() -> None:
    timed = [cell | {"seconds": seconds} for cell, seconds in zip(ROWS, (1.0, 1.5, 2.0, 1.5), strict=True)]
    assert matrix.pace(timed).splitlines() == [
        "pace: 240 cases in 6 s of work, 40 a second",
        "slowest laws, seconds: masks 3.5, subsets 2.5",
    ]
    assert matrix.pace(timed, 1).endswith(": masks 3.5")
    assert "240 cases in 0 s of work\n" in matrix.pace(ROWS)


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(ValueError, match="no rows"):
        matrix.terminal([])


def test_the_matrix_has_families_by_implementations(root: Path) -> None:
    text = read(root, report.MATRIX).replace("&nbsp;", " ")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "| family | `nested` | `older` |" in text
    assert "| gradients (1 law) | ✓ 1 | – 1 |" in text
    assert r"| rng (1 law) | ≠ 1  \* 1 | ✓ 1 |" in text
    assert "Xeon, 2 CPUs, Linux-6; python 3.11.9, torch 2.13.0+cpu; profile default, seed 7, suite at 0123456789" in text


def test_the_small_matrix_counts_verdicts_of_all_but_plain() -> None:
    rows = (row("masks", "plain"), *ROWS)
    lines = verdict_counts.markdown(Results(Path("conformance-cpu.jsonl"), HEADER, rows, {})).splitlines()
    assert lines[0] == "| implementation | laws | ✓ agrees | – refuses | ≠ diverges |"
    assert lines[2:4] == ["| `nested` | 2 | 1 | 0 | 1 |", "| `older` | 2 | 1 | 1 | 0 |"]
    assert lines[-1] == "torch 2.13.0 on the CPU, profile default, 2026-11-21."


def test_the_catalogue_has_a_line_for_each_law(root: Path) -> None:
    text = read(root, report.LAWS)
    assert all(f"\n| `{name}` | " in text for name in all_laws())
    assert text.count("\n| `") == len(all_laws())


def test_the_catalogue_is_the_same_in_every_process() -> None:
    law = all_laws()["selective_checkpointing"]
    assert law_catalogue.markdown(reversed(all_laws().values())) == law_catalogue.markdown()
    assert f"`context_fn={law.options['context_fn'].__name__}`" in law_catalogue.markdown([law])


def test_a_fresh_matrix_passes_and_a_stale_one_does_not(root: Path) -> None:
    assert report.check(root) == []
    write(root / "results" / "conformance-cpu.jsonl", HEADER, ROWS[1:])
    told = report.check(root)
    assert f"section 'matrix' of {root / report.MATRIX.page} is stale: python -m reprise report --write" in told
    report.write(root)
    assert report.check(root) == []


def test_an_edited_matrix_is_stale(root: Path) -> None:
    page = root / report.MATRIX.page
    page.write_text(page.read_text().replace("✓", "≠", 1))
    assert len(report.check(root)) == 1


def test_results_of_another_device_are_shown_too(root: Path) -> None:
    write(root / "results" / "conformance-cuda.jsonl", HEADER, [row("masks", "nested", device="cuda")])
    (told,) = report.check(root)
    assert told.startswith("section 'elsewhere' of ")
    report.write(root)
    assert "Device `cuda`" in read(root, report.ELSEWHERE)
    assert "cuda" not in read(root, report.MATRIX)


def test_laws_of_one_device_are_in_its_tables_alone(root: Path) -> None:
    cuda = [row("masks", name, device="cuda", family="rng") for name in ("nested", "older")]
    cuda += [row("streams", "nested", device="cuda", family="devices")]
    machine = HEADER["machine"] | {"accelerator": "H100"}
    write(root / "results" / "conformance-cuda.jsonl", HEADER | {"machine": machine}, cuda)
    report.write(root)
    host, device = (read(root, one).replace("&nbsp;", " ") for one in (report.MATRIX, report.ELSEWHERE))
    assert "| rng (1 law) | ✓ 1 | ✓ 1 |" in device
    assert "| devices (1 law) | ✓ 1 |  |" in device
    assert "devices" not in host


@pytest.mark.parametrize("action", [report.write, report.check])
def test_incomplete_results_are_not_published(root: Path, action: Callable[[Path], object]) -> None:
    before = read(root, report.MATRIX)
    path = root / "results" / "conformance-cpu.jsonl"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]))
    with pytest.raises(ValueError, match="no footer"):
        action(root)
    assert read(root, report.MATRIX) == before


def test_missing_results_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"conformance-cpu.jsonl does not exist"):
        report.check(tmp_path)


BEGIN, END = report.MATRIX.begin, report.MATRIX.end


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}" * 2])
def test_a_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"docs/matrix\.md must have"):
        report.MATRIX.updated(page, "matrix")


def test_a_limit_is_shown_with_a_program_that_runs(root: Path) -> None:
    shown = report.show("older", root=root)
    assert "# older on cpu, law subsets: Gradients equal plain's." in shown
    assert "# RuntimeError: no" in shown
    ran = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    assert ran.stdout == "subsets\n"


def test_an_unexpected_verdict_is_shown_as_such() -> None:
    assert "# diverges, and that is unexpected: declared is agrees" in report.limits(ROWS, "nested", "masks")


def test_a_law_that_proves_nothing_is_shown_with_the_reason() -> None:
    why = "only 0 of 4 cases prove anything, 3 must: {'nothing was recomputed': 4}"
    shown = report.limits([row("masks", "nested", as_declared=False, detail=why, known=None)], "nested")
    assert shown.splitlines()[1:] == ["# agrees, as declared, but not tested:", f"# {why}"]
    due = row("masks", "nested", as_declared=False, detail=why, known=None, expected="refuses")
    assert report.limits([due], "nested").splitlines()[1] == "# agrees, but not tested: declared is refuses"


def test_an_implementation_without_limits_has_none_to_show() -> None:
    assert report.limits([row("masks", "nested")], "nested") == "# nested: agrees on 1 of 1 laws, 60 cases"


@pytest.mark.parametrize(
    ("name", "law", "told"),
    [
        ("none", None, "'none'; there are nested, older"),
        ("nestd", None, "did you mean 'nested'[?]$"),
        ("nested", "none", "'none'; there are masks, sub"),
    ],
)
def test_unknown_names_are_answered_with_the_known(root: Path, name: str, law: str | None, told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        report.show(name, law, root=root)


def test_of_many_names_the_nearest_are_told() -> None:
    with pytest.raises(InvalidOption) as refused:
        report.show("nested", "dropout_mask")
    told = str(refused.value)
    assert "--law: no result has law 'dropout_mask'; nearest of " in told
    assert "dropout_masks_are_replayed" in told
    assert told.count(",") == report.NEAREST - 1


def test_known_reasons_are_shown_with_their_source(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"subsets": impls.Known("refuses", "the engine cannot", "pytorch#1")}
    monkeypatch.setattr(impls, "names", lambda: ("older",))
    monkeypatch.setattr(impls, "get", lambda name: impls.Implementation(name, print, known=known))
    shown = report.limits(ROWS, "older")
    assert "# known: the engine cannot\n# source: pytorch#1" in shown
    judged = [{**one, "known": {"reason": "as it was judged by", "source": "its author"}} for one in ROWS]
    assert "# known: as it was judged by\n# source: its author" in report.limits(judged, "older")
    assert "# known:" not in report.limits([{**one, "known": None} for one in ROWS], "older")


def test_the_script_that_is_shown_is_that_of_the_results() -> None:
    impl, law = report.SHOWN
    rows = [{"impl": impl, "law": "another", "program": "no"}, {"impl": impl, "law": law, "program": "import torch\n"}]
    assert "\n```python\nimport torch\n```\n" in report.shown(rows)
    with pytest.raises(ValueError, match=law):
        report.shown(rows[:1])
