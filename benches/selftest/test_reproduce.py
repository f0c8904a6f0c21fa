"""The command: what it prints, what it writes, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from benches import reproduce
from benches.papers import page, plots
from benches.papers.paper import Curve, Figure, Paper, Row, exact, trend, unverified

LINES = Curve("a", (1.0, 2.0), (3.0, 4.0), "paper"), Curve("b", (1.0, 2.0), (3.0, 5.0))


def paper(measured: int) -> Paper:
    def rows() -> Iterator[Row]:
        yield exact("one | two", says=2, measured=measured)

    def more() -> Iterator[Row]:
        yield trend("slower", says="less", measured="more", holds=False)
        yield unverified("faster", says=3)

    def figures() -> Iterator[Figure]:
        yield Figure("lines", "Lines", "x", "y", LINES)

    return Paper("chen2016", "A title", "a source", "A method.", rows, more, figures)


def run(measured: int, directory: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(reproduce, "load", lambda _: paper(measured))
    return reproduce.main(["chen2016", "--output", str(directory)])


def test_the_status_is_1_when_an_exact_claim_does_not_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(2, tmp_path, monkeypatch) == 0
    assert run(3, tmp_path, monkeypatch) == 1


def test_results_hold_rows_figures_versions_and_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(2, tmp_path, monkeypatch)
    stored = json.loads((tmp_path / "chen2016.json").read_text())
    assert [row["verdict"] for row in stored["rows"]] == ["reproduced", "not reproduced", "unverified"]
    assert stored["figures"][0]["curves"][1]["y"] == [3.0, 5.0]
    assert {"torch", "scipy", "matplotlib"} <= stored["versions"].keys()
    assert {"commit", "dirty"} <= stored["suite"].keys()
    assert (tmp_path / "lines.svg").exists()


def test_the_page_has_every_row_and_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(2, tmp_path, monkeypatch)
    text = (tmp_path / "README.md").read_text()
    assert "| one \\| two | 2 | exact | 2 | reproduced |" in text
    assert "| slower | less | trend | more | **not reproduced** |" in text
    assert "![Lines](lines.svg)" in text
    assert text == page.page(tmp_path)


def test_an_unknown_name_is_refused_with_the_names(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        reproduce.main(["nothing"])
    assert stop.value.code == 2
    assert "there is no paper 'nothing'; there are chen2016" in capsys.readouterr().err


@pytest.mark.parametrize("categories", [(), ("p", "q")])
def test_the_same_figure_is_the_same_file(tmp_path: Path, categories: tuple[str, ...]) -> None:
    curves = tuple(Curve(one.label, (0.0, 1.0), one.y, one.by) for one in LINES)
    figure = Figure("same", "Same", "x, s", "y, B", curves, categories=categories)
    for name in ("first.svg", "second.svg"):
        plots.draw(figure, tmp_path / name)
    first = (tmp_path / "first.svg").read_bytes()
    assert first == (tmp_path / "second.svg").read_bytes()
    for words in ("paper: a", "x, s", "y, B", "Same"):
        assert words.encode() in first


@pytest.mark.parametrize(("says", "measured"), [(2, 2.0), ((1, 2), (1, 3)), (1, True), ("2", 2)])
def test_an_exact_claim_needs_the_same_value_of_the_same_type(says: object, measured: object) -> None:
    assert exact("", says=says, measured=measured).failed
    assert not exact("", says=says, measured=says).failed


def test_malformed_figures_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'a' has 1 values of x and 2 of y"):
        Curve("a", (1.0,), (1.0, 2.0))
    with pytest.raises(ValueError, match="by is 'me'"):
        Curve("a", (), (), "me")
    with pytest.raises(ValueError, match="log is 'z'"):
        Figure("f", "", "", "", LINES, log="z")
    with pytest.raises(ValueError, match="'f' has no curve"):
        Figure("f", "", "", "", ())
