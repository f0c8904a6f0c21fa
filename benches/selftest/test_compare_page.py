"""The command that compares, and what becomes of its results: tables, README, plots."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from benches import compare, compare_page, compare_plots
from conformance.results_file import ROOT

MARKERS = f"before\n{compare_page.BEGIN}\nold\n{compare_page.END}\nafter\n"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "benches.compare", *arguments]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    path = tmp_path_factory.mktemp("results") / "some.json"
    workloads = "--workload", "attention", "--workload", "sweeps"
    done = command(*workloads, "--impl", "nested", "--impl", "chen-sqrt", "--rounds", "2", "--results", str(path))
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture
def content(run: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return copy.deepcopy(run[1])


def test_the_command_measures_prints_and_stores(run: tuple[str, dict[str, Any]]) -> None:
    printed, content = run
    of_attention = [row for row in content["rows"] if row["workload"] == "attention"]
    assert [row["contender"] for row in of_attention] == ["plain", "nested", "chen-sqrt"]
    assert {(row["status"], row["detail"], row["gradients"]) for row in content["rows"]} == {("measured", "", "equal")}
    assert all(len(row["times"]) == 3 and min(row["times"]) > 0 for row in of_attention)
    assert {"torch", "pytest-benchmark", "python"} <= content["versions"].keys()
    assert content["suite"]["commit"]
    assert "left out: megatron-core: " in printed
    for row in of_attention:
        assert compare_page.cells(row)[1] in printed


def test_the_curves_have_a_place_for_each_workload(content: dict[str, Any]) -> None:
    about = {name: one["x"] for name, one in content["workloads"].items() if one["x"]}
    assert about == {f"saved-{n}": n for n in (1, 10, 100, 1000)} | {f"depth-{n}": n for n in (2, 4, 8, 16, 32)}
    assert not any(row["times"] for row in content["rows"] if row["workload"].startswith("depth-"))


def test_published_results_are_those_that_check_wants(
    tmp_path: Path, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "README.md").write_text(MARKERS, encoding="utf-8")
    compare_page.store(tmp_path / "results" / "compare-cpu.json", content)
    assert compare_page.check(tmp_path) == 1
    compare_page.publish(tmp_path, content)
    assert compare.main(["--check"], tmp_path) == 0
    readme = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert readme.startswith(f"before\n{compare_page.BEGIN}\n\n| contender |")
    assert "[attention](results/compare/cpu-attention.svg), [saved](results/compare/cpu-saved.svg)" in readme
    capsys.readouterr()
    (tmp_path / "README.md").write_text(readme.replace("| `nested` |", "| `nested`, faster |"), encoding="utf-8")
    assert compare.main(["--check"], tmp_path) == 1
    assert "is stale: python -m benches.compare --write" in capsys.readouterr().err
    (tmp_path / "README.md").write_text(readme, encoding="utf-8")
    (tmp_path / "results" / "compare" / "cpu-depth.svg").unlink()
    assert compare.main(["--check"], tmp_path) == 1
    assert "plots are missing: cpu-depth" in capsys.readouterr().err


def test_without_results_there_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"{compare_page.BEGIN}\n{compare_page.END}\n", encoding="utf-8")
    assert compare.main(["--check"], tmp_path) == 0
    readme.write_text(MARKERS, encoding="utf-8")
    assert compare.main(["--check"], tmp_path) == 1
    assert "there is no" in capsys.readouterr().err


def test_a_contender_looks_the_same_in_every_plot(content: dict[str, Any]) -> None:
    style = compare_plots.styles([row for row in content["rows"] if row["contender"] != "chen-sqrt"])
    assert {name: compare_plots.styles(content["rows"])[name] for name in style} == style
    assert len({tuple(one.values()) for one in style.values()}) == len(style) == 2


def test_plots_are_the_same_bytes_and_name_every_contender(tmp_path: Path, content: dict[str, Any]) -> None:
    first, second = (compare_plots.draw_all(content, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == ["cpu-attention.svg", "cpu-saved.svg", "cpu-depth.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    for path in first:
        ET.parse(path)
    text = first[0].read_text(encoding="utf-8")
    assert all(name in text for name in ("plain", "nested", "chen-sqrt", "Pareto front"))


def test_a_void_row_has_no_numbers_and_no_point(content: dict[str, Any]) -> None:
    void = {**content["rows"][1], "status": "void", "detail": "gradients are not those of plain"}
    content["rows"][1] = void
    assert compare_page.cells(void)[1:] == ["void", *["–"] * 7, "gradients are not those of plain"]
    assert "void: nested on attention: gradients are not those of plain" in list(compare_page.ending(content))
    assert "| `nested` | void | – | – | – | – |" in compare_page.markdown(content)
    left = [name for name, _ in compare_plots.figures(content)]
    assert left == ["cpu-attention", "cpu-saved", "cpu-depth"]


def test_the_front_is_what_nothing_beats_in_both() -> None:
    points = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (2.0, 6.0), (4.0, 1.0), (4.0, 1.0)]
    assert compare_plots.front(points) == [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--impl", "nowhere"], "impl is 'nowhere'; it must be one of plain, "),
        (["--impl", "megatron-core"], "impl is 'megatron-core', which cannot be had here: "),
        (["--impl", "json:nothing"], "has no attribute 'nothing'"),
        (["--budget", "half"], "budget is 'half'"),
    ],
)
def test_wrong_options_are_refused(arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["--workload", "chain", *arguments, *([] if "--impl" in arguments else ["--impl", "nested"])]) == 1
    assert told in capfd.readouterr().err


def test_a_partial_run_is_not_published(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--write", "--impl", "nested"], ["--rounds", "1"]):
        with pytest.raises(SystemExit):
            compare.main(arguments)
    assert "--write publishes a complete run" in capsys.readouterr().err


def test_sizes_have_a_unit() -> None:
    assert [compare_page.size(n) for n in (0, 1023, 1024, 3 * 2**19, 2**31)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 MiB",
        "2.00 GiB",
    ]
