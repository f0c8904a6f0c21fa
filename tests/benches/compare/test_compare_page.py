"""The command that compares, and what becomes of its results: tables, page, plots."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benches.compare import command as compare
from benches.compare import plots, report
from benches.papers.plots import INK, PANEL
from benches.published import store
from conformance.page import figures
from conformance.page import page as html
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT, write
from tests.support.generated_pages import write_places
from tests.support.synthetic_results import HEADER, ROWS

TIMES = {"plain": 1.0, "nested": 1.5, "chen-sqrt": 1.25}  # beside plain's, or the ideal's
PAGE = report.SECTION.section
DRIVER = """
import sys
from benches.models import workloads
from reprise.command_line import main

workloads.SAVED, workloads.DEPTHS = (1, 10), (2, 4)  # larger ones take longer, and show nothing else
sys.exit(main(["compare", *sys.argv[1:]]))
"""


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", DRIVER, *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}  # else nothing is timed
    return subprocess.run(line, cwd=ROOT, env=own, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("results") / "some.json"
    workloads = "--workload", "attention", "--workload", "sweeps"
    done = command(*workloads, "--impl", "nested", "--impl", "chen-sqrt", "--rounds", "2", "--results", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def content(run: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """What was measured, with made-up times: a machine that is busy must not change what can be said of them."""
    made = copy.deepcopy(run[1])
    for row in made["rows"]:
        middle = TIMES[row["contender"]]
        row |= {name: [middle - 0.1, middle, middle + 0.1] for name in ("times", "ideal_times") if row[name]}
    return made


def test_the_command_measures_prints_and_stores(run: tuple[str, dict[str, Any]]) -> None:
    printed, content = run
    of_attention = [row for row in content["rows"] if row["workload"] == "attention"]
    assert [row["contender"] for row in of_attention] == ["plain", "nested", "chen-sqrt"]
    assert {(row["status"], row["detail"], row["gradients"]) for row in content["rows"]} == {("measured", "", "equal")}
    assert all(len(row["times"]) == 3 and min(row["times"]) > 0 for row in of_attention)
    assert {"torch", "pytest-benchmark", "python"} <= content["versions"].keys()
    assert content["suite"]["commit"]
    assert "left out" not in printed  # nobody asked for what is not there
    assert "calls: of blocks in a step" in printed
    assert "2 rounds: medians and quartiles of fewer than 10 say little" in printed
    for row in of_attention:
        assert report.cells(row)[1] in printed


def test_fake_tensors_are_counted_and_not_timed(tmp_path: Path, content: dict[str, Any]) -> None:
    arguments = "--device", "fake", "--workload", "attention", "--impl", "nested", "--results", str(tmp_path / "fake.json")
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    fake = json.loads((tmp_path / "fake.json").read_text(encoding="utf-8"))
    assert (fake["device"], fake["machine"]["accelerator"]) == ("fake", None)
    real = {row["contender"]: row for row in content["rows"] if row["workload"] == "attention"}
    assert [row["contender"] for row in fake["rows"]] == ["plain", "nested"]
    for row in fake["rows"]:
        assert (row["times"], row["ledger"], row["calls"]) == (
            None,
            real[row["contender"]]["ledger"],
            real[row["contender"]]["calls"],
        )


def test_the_curves_have_a_place_for_each_workload(content: dict[str, Any]) -> None:
    about = {name: one["x"] for name, one in content["workloads"].items() if one["x"]}
    assert about == {f"saved-{n}": n for n in (1, 10)} | {f"depth-{n}": n for n in (2, 4)}
    assert not any(row["times"] for row in content["rows"] if row["workload"].startswith("depth-"))


def test_published_results_are_those_that_check_wants(tmp_path: Path, content: dict[str, Any]) -> None:
    write_places(tmp_path, [PAGE])
    store(tmp_path / "results" / "compare-cpu.json", content)
    assert report.check(tmp_path).startswith("plots are missing: ")
    report.publish(tmp_path, content)
    assert report.check(tmp_path) == ""
    text = (tmp_path / PAGE.page).read_text(encoding="utf-8")
    assert text.startswith(f"before\n{PAGE.begin}\n\n| contender |")
    assert "[attention](../results/compare/cpu-attention.svg), [saved](../results/compare/cpu-saved.svg)" in text
    (tmp_path / PAGE.page).write_text(text.replace("| `nested` |", "| `nested`, faster |"), encoding="utf-8")
    assert report.check(tmp_path) == "the comparison in docs/comparison.md is stale: python -m reprise compare --write"
    (tmp_path / PAGE.page).write_text(text, encoding="utf-8")
    (tmp_path / "results" / "compare" / "cpu-depth.svg").unlink()
    assert report.check(tmp_path).startswith("plots are missing: cpu-depth")


def test_without_results_there_is_no_table(tmp_path: Path) -> None:
    write_places(tmp_path, [PAGE])
    PAGE.write(tmp_path, report.SECTION.nothing)
    assert report.check(tmp_path) == ""
    write_places(tmp_path, [PAGE])
    assert "there is no" in report.check(tmp_path)


def test_a_contender_looks_the_same_in_every_plot(content: dict[str, Any]) -> None:
    style = plots.styles([row for row in content["rows"] if row["contender"] != "chen-sqrt"])
    assert {name: plots.styles(content["rows"])[name] for name in style} == style
    assert len({tuple(one.values()) for one in style.values()}) == len(style) == 2


def test_plots_are_the_same_bytes_and_name_every_contender(tmp_path: Path, content: dict[str, Any]) -> None:
    first, second = (plots.draw_all(content, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["cpu-attention.svg", "cpu-saved.svg", "cpu-depth.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for path in first:
        ET.parse(path)
    text = first[0].read_text(encoding="utf-8")
    assert all(name in text for name in ("plain", "nested", "chen-sqrt", "Pareto front"))


def test_a_void_row_has_no_numbers_and_no_point(content: dict[str, Any]) -> None:
    void = {**content["rows"][1], "status": "void", "detail": "gradients are not those of plain"}
    content["rows"][1] = void
    assert report.cells(void)[1:] == ["void", *["–"] * 7, "gradients are not those of plain"]
    assert "void: nested on attention: gradients are not those of plain" in list(report.ending(content))
    assert "| `nested` | void | – | – | – | – |" in report.markdown(content)
    left = [plot.name for plot in plots.figures(content)]
    assert left == ["cpu-attention", "cpu-saved", "cpu-depth"]


def test_a_plot_says_in_words_what_it_shows(tmp_path: Path, content: dict[str, Any]) -> None:
    attention, saved, depth = plots.figures(content)
    assert attention.caption == (
        "Memory against time on cpu: attention, GPT-2-like layers, attention written out; size S, 6 regions"
    )
    assert "Each of 3 contenders is a point" in attention.description
    plain, nested, chen = content["rows"][:3]
    assert _front(attention) == [_said(plain, plain), _said(plain, chen), _said(plain, nested)]
    assert "at 1, 10. A curve for each of 1 contenders: nested." in saved.description
    assert "at 2, 4. A curve for each of 3 contenders" in depth.description
    for drawn, plot in zip(plots.draw_all(content, tmp_path), (attention, saved, depth), strict=True):
        figure = next(one for one in figures.figures(tmp_path) if one.file == f"{tmp_path.name}/{drawn.name}")
        assert (figure.caption, figure.description) == (plot.caption, plot.description)


def _front(plot: plots.Plot) -> list[str]:
    """What the words of a plot say of each point on the front."""
    return plot.description.split("On the Pareto front: ")[1].removesuffix(".").split("; ")


def _said(plain: dict[str, Any], *rows: dict[str, Any]) -> str:
    """What is to be said of a point where these contenders are."""
    peak = rows[0]["allocated"]["peak"] / plain["allocated"]["peak"]
    names = " and ".join(row["contender"] for row in rows)
    return f"{names}, {rows[0]['times'][1]:.2f} times plain's time and {peak:.2f} times its peak"


def test_the_words_of_a_plot_leave_out_what_is_beaten_and_name_all_in_one_place(content: dict[str, Any]) -> None:
    plain, nested, chen = content["rows"][:3]
    chen["times"] = [1.5, 1.6, 1.7]
    assert _front(next(plots.figures(content))) == [_said(plain, plain), _said(plain, nested)]
    chen |= {"times": nested["times"], "allocated": nested["allocated"]}
    assert _front(next(plots.figures(content))) == [_said(plain, plain), _said(plain, nested, chen)]


def test_every_colour_of_a_plot_has_one_for_dark_pages_and_is_legible_on_both(tmp_path: Path, content: dict[str, Any]) -> None:
    for path in plots.draw_all(content, tmp_path):
        svg = path.read_text(encoding="utf-8")
        before, after = svg.split("</style>")
        assert "@media (prefers-color-scheme: dark)" in before
        assert set(re.findall(r"(?:fill|stroke): (#\w+)", after)) <= plots.DARK.keys()
    drawn = [*plots.COLOURS.values(), INK, plots.FRONT]
    for panel, colours in (
        (PANEL, drawn),
        (plots.DARK[PANEL], map(plots.DARK.get, drawn)),
    ):
        assert min(abs(luminance(colour or "") - luminance(panel)) for colour in colours) > 0.15


def luminance(colour: str) -> float:
    shares = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return sum(share**2.2 * weight for share, weight in zip(shares, (0.2126, 0.7152, 0.0722), strict=True))


def test_of_points_in_one_place_the_first_is_drawn_around_the_others() -> None:
    assert plots.covered([(1.0, 1.0), (1.01, 1.0), (1.0, 2.0), (3.0, 1.0), (1.0, 1.01)]) == [2, 1, 0, 0, 0]
    assert plots.covered([(1.0, 1.0)]) == [0]


def test_plots_and_table_are_drawn_anew_from_what_was_published(tmp_path: Path, content: dict[str, Any]) -> None:
    write_places(tmp_path, [PAGE])
    with pytest.raises(ValueError, match="nothing is published in"):
        compare.redraw(tmp_path)
    store(tmp_path / "results" / "compare-cpu.json", content)
    compare.redraw(tmp_path)
    assert report.check(tmp_path) == ""
    assert not (tmp_path / "results" / "index.html").exists()  # plots alone make no page


def test_the_page_shows_the_plots_that_were_published_last(tmp_path: Path, content: dict[str, Any]) -> None:
    write_places(tmp_path, [PAGE])
    store(tmp_path / "results" / "compare-cpu.json", content)
    shown = tmp_path / "results" / "index.html"
    shown.write_text("an old page", encoding="utf-8")
    with pytest.raises(ValueError, match=f"{shown} is not made: "):
        compare.redraw(tmp_path)
    write(tmp_path / "results" / "conformance-cpu.jsonl", HEADER, ROWS)
    compare.redraw(tmp_path)
    assert html.check(tmp_path) == ""
    assert "compare/cpu-attention.svg" in shown.read_text(encoding="utf-8")


def test_what_was_left_out_is_told_and_enough_rounds_are_not(content: dict[str, Any]) -> None:
    content |= {"rounds": 10, "left_out": [{"name": "best", "reason": "it is not here"}]}
    assert list(report.explained(content)) == [report.LEGEND]
    assert next(report.ending(content)) == "left out: best: it is not here"


def test_what_was_counted_of_fake_tensors_is_no_measurement(content: dict[str, Any]) -> None:
    _, told, _ = report.explained(content | {"device": "fake", "rounds": 3})
    assert told.startswith("device fake: no kernel runs. Bytes are of the storages that operators would make")


def test_every_column_is_explained() -> None:
    assert all(heading in report.LEGEND for heading in report.HEADINGS if heading != "contender")


def test_the_front_is_what_nothing_beats_in_both() -> None:
    points = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (2.0, 6.0), (4.0, 1.0), (4.0, 1.0)]
    assert plots.front(points) == [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"implementations": ["nowhere"]}, "impl is 'nowhere'; it must be one of plain, "),
        ({"implementations": ["chen-sqr"]}, "did you mean 'chen-sqrt'[?]"),
        ({"implementations": ["megatron-core"]}, "impl is 'megatron-core', which cannot be had here: "),
        ({"implementations": ["nowhere"]}, "torch-graph-save_on_cpu, chen-sqrt, or"),
        ({"implementations": ["json:nothing"]}, "has no attribute 'nothing'"),
        (
            {"implementations": ["operator:call", "builtins:print"]},
            "builtins:print cannot be judged: ",
        ),
        ({"implementations": ["nested"], "budgets": ["half"]}, "budget is 'half'"),
    ],
)
def test_what_cannot_be_compared_is_refused(chosen: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        compare._chosen("cpu", compare.Choice(**chosen))


def test_sizes_have_a_unit() -> None:
    assert [report.size(n) for n in (0, 1023, 1024, 3 * 2**19, 2**31)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 MiB",
        "2.00 GiB",
    ]
