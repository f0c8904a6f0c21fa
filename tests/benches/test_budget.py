"""The budget example: it keeps its budgets where plain does not, and the page has the table of the results."""

from __future__ import annotations

import copy
import json
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benches.budget import command
from benches.budget.costs import BUDGETS, Row, measured, mebi, require_equal, training
from impls.examples import within_budget
from impls.examples.within_budget import BUDGET, ROOM, batch, network
from impls.schedules import kept, plan_for, sqrt_segments
from tests.support.generated_pages import place

PAGE = command.SECTION.section
MARKERS = place(PAGE)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def content(_one_thread: None) -> dict[str, Any]:
    return json.loads(json.dumps(measured(rounds=2)))


@pytest.fixture
def rows(content: dict[str, Any]) -> list[Row]:
    return [Row(**row) for row in content["rows"]]


def test_plain_exceeds_each_budget_and_the_plan_for_it_keeps_it(rows: list[Row], content: dict[str, Any]) -> None:
    plans = {row.budget: row for row in rows if row.budget is not None}
    assert set(plans) == set(content["budgets"])
    for size, plan in plans.items():
        assert plan.peak <= size < min(rows[0].tensors, rows[0].allocated)
    assert command.broken(content) == []


def test_equal_segments_at_the_square_root_fit_the_larger_budget_only(rows: list[Row]) -> None:
    segments = next(row for row in rows if row.name.startswith("Chen's √n segments"))
    assert segments.plan.startswith("[0 1 2 3 4] [5 6 7 8 9]")
    assert min(BUDGETS) < segments.peak <= BUDGET


def test_two_meters_differ_by_what_the_example_leaves_room_for(rows: list[Row]) -> None:
    state = torch.get_rng_state().nbytes
    assert rows[0].allocated == rows[0].tensors
    for row in rows[1:]:
        assert 0 <= row.allocated - row.tensors <= state * row.plan.count("[") < ROOM


def test_every_checkpointed_training_runs_layers_again(rows: list[Row], content: dict[str, Any]) -> None:
    assert content["kernels"] == len(network()) - 1  # all but nn.Flatten
    assert (rows[0].kernels, rows[0].flops, set(rows[0].times)) == (0, 0, {1.0})
    assert all(row.kernels > 0 and row.flops >= 0 for row in rows[1:])


def test_gradients_that_are_not_plain_s_are_noticed() -> None:
    model = network()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    plain, segments = training(model, kept(0, len(model))), training(model, sqrt_segments(len(model)))
    require_equal(model, {"plain": plain, "segments": segments})

    def wrong() -> None:
        segments()
        next(model.parameters()).grad[0, 0] += 1e-6  # type: ignore[index]

    with pytest.raises(RuntimeError, match="wrong: gradients are not those of plain"):
        require_equal(model, {"plain": plain, "wrong": wrong})


def test_a_budget_below_the_least_is_refused_with_the_least() -> None:
    with pytest.raises(ValueError, match=r"budget_bytes is 1000000; the least that any plan of this model needs is \d+ bytes"):
        plan_for(network(), batch()[0], 1_000_000)


@pytest.mark.parametrize("given", ["-3", "0.5", "abc", "nan", "inf", "1e9", "", "7 8"])
def test_a_budget_that_makes_no_sense_is_refused_with_what_does(given: str) -> None:
    told = rf"MiB is '{given}'; it must be one number, at least ([\d.]+), .* and at most ([\d.]+), "
    with pytest.raises(ValueError, match=told):
        within_budget.budget_from(given.split(" "), network())


def test_the_budgets_that_are_named_are_accepted_and_those_beyond_them_are_not() -> None:
    with pytest.raises(ValueError, match="MiB is 'abc'") as raised:
        within_budget.budget_from(["abc"], network())
    least, most = map(float, re.findall(r"\d+\.\d\d", str(raised.value)))
    for named, beyond in ((least, least - 0.01), (most, most + 0.01)):
        accepted = within_budget.budget_from([f"{named}"], network())
        assert accepted == int(named * 2**20)
        with pytest.raises(ValueError, match="it must be one number"):
            within_budget.budget_from([f"{beyond:.2f}"], network())
        assert plan_for(network(), batch()[0], accepted - ROOM)


def test_the_example_ends_with_the_reason_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["within_budget", "0.5"])
    with pytest.raises(SystemExit, match=r"MiB is '0\.5'; it must be"):
        runpy.run_path(str(within_budget.__file__), run_name="__main__")
    assert not capsys.readouterr().out


def test_the_example_trains_within_the_budget(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["within_budget"])
    runpy.run_path(str(within_budget.__file__), run_name="__main__")
    first, *steps = capsys.readouterr().out.splitlines()
    assert first.startswith(f"plan for {BUDGET:,} bytes: ")
    losses = [float(line.split()[1].rstrip(",")) for line in steps]
    assert len(losses) == 8
    assert losses[-1] < losses[0] / 2
    assert all("gradients: True" in line for line in steps)


def root_with(tmp_path: Path, page: str, content: dict[str, Any]) -> Path:
    (tmp_path / PAGE.page).parent.mkdir()
    (tmp_path / PAGE.page).write_text(page, encoding="utf-8")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "budget.json").write_text(json.dumps(content), encoding="utf-8")
    return tmp_path


def test_write_leaves_results_and_the_table_that_check_wants(
    tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = root_with(tmp_path, MARKERS, {})
    monkeypatch.setattr(command, "measured", lambda: content)
    command.run_bench(publish=True, root=root)
    assert command.SECTION.check(root) == ""
    stored = json.loads((root / "results" / "budget.json").read_text())
    assert stored == {**content, **{name: stored[name] for name in ("suite", "fingerprints")}}
    text = (root / PAGE.page).read_text(encoding="utf-8")
    heading = f"| training | peak, MiB | within {mebi(BUDGETS[0])} MiB | within {mebi(BUDGETS[1])} MiB |"
    assert text.startswith(f"before\n{PAGE.begin}\n\n{heading}")
    assert text.endswith(f"\n{PAGE.end}\nafter\n")
    assert f"| plain | {content['rows'][0]['tensors'] / 2**20:.2f} | no | no | – | – | – |" in text


@pytest.mark.parametrize(("old", "new"), [("| no |", "| yes |"), ("peak, MiB", "peak, GiB"), ("Gradients", "Most gradients")])
def test_check_fails_for_another_table(tmp_path: Path, content: dict[str, Any], old: str, new: str) -> None:
    page = PAGE.updated(MARKERS, command.markdown(content))
    root = root_with(tmp_path, page.replace(old, new, 1), content)
    assert command.SECTION.check(root) == "the budget table in docs/comparison.md is stale: python -m reprise budget --write"


def test_check_fails_without_results_or_markers(tmp_path: Path, content: dict[str, Any]) -> None:
    with pytest.raises(FileNotFoundError, match=r"comparison\.md"):
        command.SECTION.check(tmp_path)
    with pytest.raises(ValueError, match="must have <!-- budget:begin -->"):
        command.SECTION.check(root_with(tmp_path, "no markers", content))


def test_write_without_markers_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "measured", lambda: pytest.fail("measured"))
    with pytest.raises(ValueError, match="must have <!-- budget:begin -->"):
        command.run_bench(publish=True, root=root_with(tmp_path, "no markers", {}))


def test_a_missed_budget_is_not_written(tmp_path: Path, content: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    root, missed = root_with(tmp_path, MARKERS, {}), copy.deepcopy(content)
    missed["rows"][-1]["allocated"] = missed["rows"][-1]["budget"] + 1
    missed["rows"][0].update(allocated=1, tensors=1)
    monkeypatch.setattr(command, "measured", lambda: missed)
    with pytest.raises(ValueError, match=rf"plain takes 1 bytes, which fit {BUDGET}.*the plan for {BUDGETS[1]} bytes"):
        command.run_bench(publish=True, root=root)
    assert (root / PAGE.page).read_text(encoding="utf-8") == MARKERS
