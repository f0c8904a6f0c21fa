"""Limits of the comparison on CUDA, by made-up times and bytes: reached, not reached, and not judged."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benches.compare import command, meters, report
from benches.compare import limits as compare_limits
from benches.compare.contenders import checkpointing
from benches.compare.limits import LARGE, NOT_JUDGED, NOT_REACHED, REACHED, SMALL, Limit, limits
from benches.compare.measurement import Row, Subject
from benches.compare.steps import Entry
from benches.models.workloads import workload
from impls import get

NESTED = checkpointing("nested", "ours", get("nested").checkpoint)
TITLES = [
    *(f"{name}, size L: time of nested / ideal" for name in LARGE),
    "small-layers: what nested adds to the ideal / what torch-nonreentrant adds",
    *(f"{name}, size L: peak of nested / oracle" for name in (*LARGE, SMALL)),
]


def row(workload: str, contender: str, ideal: float | None, peak: int = 1000, **other: Any) -> dict[str, Any]:
    times = None if ideal is None else [ideal - 0.001, ideal, ideal + 0.001]
    made = {"workload": workload, "contender": contender, "status": "measured", "detail": "", "ideal_times": times}
    return {**made, "times": times, "ideal": {"flops": 1}, "allocated": {"kept": 1, "peak": peak}, **other}


def content(size: str = "L", device: str = "cuda", **changes: Any) -> dict[str, Any]:
    """A comparison in which every limit is reached, exactly; ``changes`` are fields of nested's row by workload."""
    rows = [row(name, "nested", 1.02) for name in LARGE]
    rows += [row(SMALL, "nested", 1.1), row(SMALL, "torch-nonreentrant", 1.2501)]
    for one in rows:
        one |= changes.get(one["workload"].replace("-", "_"), {}) if one["contender"] == "nested" else {}
    about = {name: {"predicted": 1000, "x": 0, "flops": 4} for name in (*LARGE, SMALL)}
    return {"device": device, "size": size, "rows": rows, "workloads": about, "left_out": [], "rounds": 15}


def verdicts(found: list[Limit]) -> dict[str, str]:
    return {one.name: one.verdict for one in found}


def missed(**changes: Any) -> list[str]:
    found = limits(content(**changes))
    assert not compare_limits.kept(found)
    return [one.name for one in found if one.verdict != REACHED]


def test_what_is_just_within_every_limit_reaches_them() -> None:
    found = limits(content())
    assert verdicts(found) == dict.fromkeys(TITLES, REACHED)
    assert compare_limits.kept(found)
    assert found[3].value == pytest.approx(0.4, rel=1e-3)
    assert list(compare_limits.notes(found)) == []


@pytest.mark.parametrize("name", LARGE)
def test_a_step_beyond_the_ideal_is_not_reached(name: str) -> None:
    assert missed(**{name.replace("-", "_"): {"ideal_times": [1.0, 1.0201, 1.1]}}) == [
        f"{name}, size L: time of nested / ideal"
    ]


def test_adding_more_than_the_share_of_theirs_is_not_reached() -> None:
    assert missed(small_layers={"ideal_times": [1.0, 1.11, 1.2]}) == [TITLES[3]]
    assert verdicts(limits(content(small_layers={"ideal_times": [0.9, 0.99, 1.2]})))[TITLES[3]] == REACHED


def test_where_theirs_adds_nothing_there_is_no_share() -> None:
    one = content()
    one["rows"][-1]["ideal_times"] = [0.9, 1.0, 1.1]
    found = limits(one)[3]
    assert (found.verdict, found.value) == (NOT_REACHED, None)
    assert found.detail == "nested adds +10.0%, torch-nonreentrant +0.0%: nothing that ours could be a share of"


@pytest.mark.parametrize("name", [*LARGE, SMALL])
@pytest.mark.parametrize(("peak", "reached"), [(979, False), (980, True), (1020, True), (1021, False)])
def test_a_peak_is_within_the_limit_on_either_side(name: str, peak: int, reached: bool) -> None:
    changes: dict[str, Any] = {name.replace("-", "_"): {"allocated": {"kept": 1, "peak": peak}}}
    found = limits(content(**changes))
    beyond = [one.name for one in found if one.verdict == NOT_REACHED]
    assert beyond == ([] if reached else [f"{name}, size L: peak of nested / oracle"])


def test_what_is_void_or_not_timed_is_not_reached() -> None:
    void = {"status": "void", "detail": "gradients are not those of plain", "ideal_times": None, "allocated": None}
    assert missed(resnet50=void) == [TITLES[2], TITLES[6]]
    assert missed(attention={"ideal_times": None}) == [TITLES[1]]
    assert missed(small_layers=void) == [TITLES[3], TITLES[7]]
    details = {one.detail for one in limits(content(small_layers=void)) if one.verdict == NOT_REACHED}
    assert all("void: gradients are not those of plain" in detail for detail in details)


def test_without_an_oracle_a_peak_is_not_reached() -> None:
    one = content()
    one["workloads"]["resnet50"] = {
        "predicted": None,
        "unpredicted": "OutOfMemoryError: CUDA out of memory",
        "x": 0,
        "flops": 4,
    }
    (found,) = (limit for limit in limits(one) if limit.verdict != REACHED)
    assert (found.name, found.verdict, found.detail) == (
        "resnet50, size L: peak of nested / oracle",
        NOT_REACHED,
        "no oracle: OutOfMemoryError: CUDA out of memory",
    )


def test_what_a_run_does_not_measure_is_not_judged() -> None:
    small = limits(content(size="S"))
    assert [one.verdict for one in small] == [NOT_JUDGED] * 3 + [REACHED] * 5
    assert compare_limits.kept(small)
    (told,) = compare_limits.notes(small)
    assert told == f"not judged: {'; '.join(TITLES[:3])}"
    without_theirs = content()
    del without_theirs["rows"][-1]
    assert verdicts(limits(without_theirs))[TITLES[3]] == NOT_JUDGED
    nothing = limits({**content(), "rows": []})
    assert {one.verdict for one in nothing} == {NOT_JUDGED}
    assert compare_limits.table(nothing) is None


def test_another_device_than_cuda_has_no_limits() -> None:
    assert limits(content(device="cpu")) == limits(content(device="fake")) == []
    assert limits(content(device="cuda:1")) == limits(content())


@pytest.mark.parametrize(("time", "reached"), [(1.02, True), (1.03, False)])
def test_a_run_and_its_file_tell_what_is_not_reached(
    time: float, reached: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    one = content(attention={"ideal_times": [time, time, time]})
    found = compare_limits.stored(limits(one))
    monkeypatch.setattr(command, "measured", lambda *_: one | {"limits": found})
    assert command.compare(command.Choice(), path=tmp_path / "some.json", root=tmp_path) is reached
    printed = capfd.readouterr().out
    assert ("not reached: attention, size L: time of nested / ideal" in printed) is not reached
    assert f"{time:.3f}" in printed
    stored = json.loads((tmp_path / "some.json").read_text(encoding="utf-8"))["limits"]
    assert [limit["verdict"] for limit in stored] == [REACHED, REACHED if reached else NOT_REACHED, *[REACHED] * 6]


def test_a_table_shows_brackets_as_they_are() -> None:
    console = Console(width=160, record=True, file=sys.stderr)
    table = compare_limits.table([Limit("one", 1.0, detail="RuntimeError: [2, 3] does not fit"), Limit("two", 1.0, 0.9, 1.0)])
    assert table is not None
    console.print(table)
    text = console.export_text()
    assert "not reached" in text
    assert "[2, 3] does not fit" in text
    assert "0.9 to 1" in text


def test_the_oracle_is_near_to_what_nested_takes_and_says_when_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = Subject(workload("attention"), "cpu")
    measured = compare_limits.oracle(subject)["predicted"]
    states = len(subject.workload.blocks) * torch.get_rng_state().nbytes  # which are on the CPU, as its blocks are
    step = subject.bind(NESTED, NESTED.plan(subject.workload))
    assert meters.allocated(step, "cpu").peak == pytest.approx(measured + states, rel=0.02)

    def over(*_: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand more")

    monkeypatch.setattr(compare_limits, "predicted", over)
    told = "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    assert compare_limits.oracle(subject) == {"predicted": None, "unpredicted": told}


def test_an_oracle_is_asked_for_what_has_a_limit_on_cuda() -> None:
    def wanted(name: str, contender: str, device: str) -> bool:
        return compare_limits.needs_oracle(Row(name, contender, "ours", "measured"), device)

    assert wanted("resnet50", "nested", "cuda:0")
    assert not wanted("resnet50", "nested", "cpu")
    assert not wanted("resnet50", "legacy", "cuda")
    assert not wanted("chain", "nested", "cuda")


def test_what_is_told_of_a_workload_keeps_its_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_limits, "device_type", lambda device: "cuda")
    subject = Subject(workload("attention"), "cpu")
    display = command._Display(Console(file=sys.stderr), 3)
    entry = Entry("attention", lambda: subject.workload, [NESTED] * 3)
    for name in ("plain", "nested", "legacy"):
        display.told(Row("attention", name, "ours", "raises"), subject, entry)
        assert ("predicted" in display.subjects["attention"]) == (name != "plain")
    assert display.subjects["attention"] | compare_limits.oracle(subject) == display.subjects["attention"]
    assert display.subjects["attention"]["blocks"] == len(subject.workload.blocks)


def test_extra_time_of_segments_is_told_beside_what_it_must_be() -> None:
    chen = row("attention", "chen-sqrt", 1.04, times=[1.29, 1.30, 1.31])
    (told,) = report.ending({**content(), "rows": [chen]})
    measured, ideal, layers = told.removeprefix("extra time of chen-sqrt on attention: ").split("; ")
    assert measured == "+30% (+29% to +31%)"
    assert ideal == "the ideal's: about +25%, +25% of FLOPs"
    assert layers == "were every layer run again, and backward twice forward: +33%"
    untimed = row("attention", "chen-sqrt", None)
    assert not list(report.ending({**content(), "rows": [untimed]}))
