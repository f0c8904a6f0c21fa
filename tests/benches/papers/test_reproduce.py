"""The command: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benches import reproduce
from benches.papers import page, plots
from benches.papers.paper import (
    KINDS,
    Claim,
    Curve,
    Figure,
    Found,
    Paper,
    Said,
    derived,
    difference,
    exact,
    shown,
    trend,
)

LINES = Curve("a", (1.0, 2.0), (3.0, 4.0), "formula"), Curve("b", (1.0, 2.0), (3.0, 5.0), "measured")
SAID = Said("n + 1", "equation 2")


def paper(measured: int, holds: bool) -> Paper:
    def claims() -> Iterator[Claim]:
        yield exact("one | two", says=SAID, expected=2, measure=lambda: measured)

    def more() -> Iterator[Claim]:
        yield trend("slower", says=Said("less", "abstract"), measure=lambda: Found("3 ×", holds=holds, figures=(2, 3)))
        yield shown("faster", says=Said("3 ×"))

    def figures() -> Iterator[Figure]:
        yield Figure("lines", "Lines", "x", "y", LINES, note="A note.")

    return Paper("chen2016", "A title", "a source", "A method.", claims, more, figures)


def run(directory: Path, monkeypatch: pytest.MonkeyPatch, measured: int = 2, holds: bool = True) -> bool:
    monkeypatch.setattr(reproduce, "load", lambda _: paper(measured, holds))
    return reproduce.reproduce_papers(["chen2016"], directory)


def test_a_claim_that_does_not_come_out_and_a_trend_that_fails_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, monkeypatch)
    assert "3 claims, 0 failed" in capsys.readouterr().out
    assert not run(tmp_path, monkeypatch, measured=3)
    assert "not reproduced  one | two: expected 2, measured 3" in capsys.readouterr().out
    assert not run(tmp_path, monkeypatch, holds=False)
    assert "trend fails  slower: expected less (abstract), measured 3 ×" in capsys.readouterr().out


def test_results_hold_rows_figures_versions_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch)
    stored = json.loads((tmp_path / "chen2016.json").read_text())
    assert [row["verdict"] for row in stored["rows"]] == ["reproduced", "trend holds, figure differs", "unverified"]
    assert stored["rows"][0]["says"] == {"words": "n + 1", "place": "equation 2"}
    assert stored["figures"][0]["curves"][1] | {"x": []} == {
        "label": "b",
        "x": [],
        "y": [3.0, 5.0],
        "kind": "measured",
        "joined": True,
    }
    assert {"torch", "scipy", "matplotlib"} <= stored["versions"].keys()
    assert {"commit", "dirty"} <= stored["suite"].keys()
    assert (tmp_path / "lines.svg").exists()


def test_the_page_tells_what_the_paper_says_from_what_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch, measured=3)
    text = (tmp_path / "README.md").read_text()
    assert "| one \\| two | n + 1 (equation 2) | 2 | 3 | **not reproduced** |" in text
    assert "| slower | less (abstract) |  | 3 × | trend holds, figure differs |" in text
    assert "| faster | reported (unverified): 3 × |  | not measured | unverified |" in text
    assert "![Lines](lines.svg)\n\nA note." in text
    assert text == page.page(tmp_path)


def test_the_page_explains_the_verdicts_that_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, monkeypatch)
    text = (tmp_path / "README.md").read_text()
    assert "| paper | reproduced | trend holds, figure differs | unverified |" in text
    assert "- **trend holds, figure differs**: " in text
    assert "- **trend fails**" not in text
    assert all(f"*{kind}*: {told}." in text for kind, told in KINDS.items())


@pytest.mark.parametrize("categories", [(), ("p", "q")])
def test_the_same_figure_is_the_same_file(tmp_path: Path, categories: tuple[str, ...]) -> None:
    curves = tuple(Curve(one.label, (0.0, 1.0), one.y, one.kind) for one in LINES)
    figure = Figure("same", "Same", "x, s", "y, B", curves, categories=categories)
    for name in ("first.svg", "second.svg"):
        plots.draw(figure, tmp_path / name)
    first = (tmp_path / "first.svg").read_bytes()
    assert first == (tmp_path / "second.svg").read_bytes()
    for words in ("a (formula)", "b (measured)", "x, s", "y, B", "Same"):
        assert words.encode() in first


def test_only_what_was_measured_has_a_solid_line() -> None:
    lines = {kind: plots._style(Curve("", (), (), kind), 0)["linestyle"] for kind in KINDS}
    assert [kind for kind, line in lines.items() if line == "-"] == ["measured"]
    assert lines["computed"] != lines["simulated"]


@pytest.mark.parametrize(("expected", "measured"), [(2, 2.0), ((1, 2), (1, 3)), (1, True), ("2", 2)])
@pytest.mark.parametrize(
    ("make", "right", "wrong"),
    [
        (exact, "reproduced", "not reproduced"),
        (derived, "as expected", "not as expected"),
        (difference, "differs by design", "not as expected"),
    ],
)
def test_a_value_must_be_equal_and_of_the_same_type(
    make: Callable[..., Claim], right: str, wrong: str, expected: object, measured: object
) -> None:
    row = make("", says=SAID, expected=expected, measure=lambda: measured).row()
    assert (row.verdict, row.failed) == (wrong, True)
    row = make("", says=SAID, expected=expected, measure=lambda: Found(expected)).row()
    assert (row.verdict, row.failed) == (right, False)


@pytest.mark.parametrize(
    ("ours", "verdict"), [(13.7, "trend holds, figure differs"), (3.4, "trend holds, figure differs"), (7.5, "trend holds")]
)
def test_a_figure_further_than_a_tenth_away_differs(ours: float, verdict: str) -> None:
    assert trend("", measure=lambda: Found("", holds=True, figures=(6.9, ours))).row().verdict == verdict
    assert trend("", measure=lambda: Found("", holds=False, figures=(6.9, ours))).row().verdict == "trend fails"


def test_what_nobody_has_read_is_never_exact() -> None:
    with pytest.raises(ValueError, match="claim 'faster' is exact and has no place in the work"):
        exact("faster", says=Said("3 ×"), expected=3, measure=lambda: 3)
    assert shown("faster", says=Said("3 ×"), measure=lambda: 3).row().verdict == "unverified"
    assert shown("faster", says=SAID, measure=lambda: 3).row().verdict == "not judged"


def test_malformed_figures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' has 1 values of x and 2 of y"):
        Curve("a", (1.0,), (1.0, 2.0), "measured")
    with pytest.raises(ValueError, match="kind is 'paper'; it must be one of stated, formula, "):
        Curve("a", (), (), "paper")
    with pytest.raises(ValueError, match="log is 'z'"):
        Figure("f", "", "", "", LINES, log="z")
    with pytest.raises(ValueError, match="'f' has no curve"):
        Figure("f", "", "", "", ())
