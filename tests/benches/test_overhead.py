"""What nested and native cost beside PyTorch's: arithmetic, the ladder, memory, predicted bytes, what becomes of results."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benches.models.workloads import Workload, workload
from benches.overhead import command, figures, host_memory, peak_bytes, tables
from benches.overhead import ladder as overhead_ladder
from benches.overhead.chain import LENGTHS, OURS, available, chain, regions
from benches.overhead.figures import Reading
from benches.overhead.ladder import LADDER, MINIMAL, Rung, Step
from benches.overhead.peak_bytes import Measured, Peak
from benches.papers.meters.live import Live
from benches.published import store
from benches.rounds import Times
from conformance.provenance import measured_code
from conformance.provenance.staleness import unmarked
from impls import native
from impls.schedules import uniform
from tests.support.generated_pages import write_places

BY_NAME = {rung.name: rung.checkpoint for rung in LADDER}
PAGE = tables.SECTION.section
NESTED = Measured("nested", OURS["nested"])


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def content() -> dict[str, Any]:
    readings = [
        Reading("nested", "overhead ratio, 10 saved", 0.5, 0.3, "half of the rounds in 0.49 to 0.51", "µs", 5.0, 10.0, 7.0),
        Reading("native", "a retained backward, late / early", 1.0, 1.2),
        Reading("nested", "host memory per saved tensor", 0.7, None),
    ]
    ladder = [Step(rung.name, rung.ingredient, (1.0,) * 4, (0.5,) * 4) for rung in LADDER]
    peaks = [Peak("nested", "chain of 4", "storages", 1024, 1024, 0.0), Peak("native", "resnet", "allocator", 1000, 1011, 0.01)]
    made = {
        "versions": {"torch": "2.13.0"},
        "machine": {"processor": "some", "cpus": 2},
        "suite": {"commit": "0123456789abcdef", "dirty": False},
        "date": "2026-11-22T00:00:00",
        "scale": 1.0,
        "threads": 1,
        "state": 5056,
        "lengths": LENGTHS,
        "left_out": ["host memory: not here"],
        "readings": [asdict(one) for one in readings],
        "ladder": [asdict(one) for one in ladder],
        "bytes": [asdict(one) for one in peaks],
    }
    return json.loads(json.dumps(made))


def _times() -> Times:
    return Times({"replay": (1.0, 3.0, 2.0), "ours": (3.0, 5.0, 4.0), "torch": (9.0, 11.0, 10.0)})


def test_the_ratio_is_of_what_each_adds_to_replay() -> None:
    found = figures.compared("ours", "2 saved", _times(), 0.3)
    assert (found.name, found.unit, found.floor, found.ours, found.torch) == ("overhead ratio, 2 saved", "µs", 2e6, 2e6, 8e6)
    assert found.value == 0.25
    assert found.detail == "half of the rounds in 0.25 to 0.25"
    assert found.holds
    assert not replace(found, limit=0.24).holds


def test_a_rung_has_its_own_time_beyond_replay() -> None:
    rung = Rung("ours", "something", BY_NAME["nested"])
    assert overhead_ladder.step(rung, [_times(), _times()]) == Step("ours", "something", (2e6, 2e6), (0.25, 0.25))


def test_what_is_flat_is_so_in_both_directions() -> None:
    for seconds in ((1.0, 1.25, 1.0), (1.25, 1.0, 1.0)):
        found = figures.flat("ours", "some", (1, 2, 3), {"ours": seconds, "torch": (3.0, 1.5, 3.0)})
        assert found.value == 1.25
        assert "PyTorch's 2.00" in found.detail


def test_growth_of_both_is_timed_on_the_same_chains() -> None:
    found = figures.added({"ours": BY_NAME["native"]}, [(1, 1), (5, 2)], 0.1)
    assert {name: len(times) for name, times in found.items()} == {"ours": 2, "torch": 2}


def test_replay_runs_the_forward_of_each_region_twice() -> None:
    for name, kernels in (("replay", 12), ("ours", 10)):  # early stop saves the last operator of each region
        with Live() as live:
            regions(3, {"ours": BY_NAME["nested"]}, 2)[name]()
        assert (live.kernels["sin"], live.kernels["cos"]) == (kernels, 6)


@pytest.mark.parametrize("length", [1, 2, 10, 100])
def test_every_rung_gives_the_gradient_of_plain(length: int) -> None:
    overhead_ladder.require_plain(LADDER, length)


def test_a_rung_with_another_gradient_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Rung("wrong", "a larger value", lambda function, x: function(x) * 2)
    with pytest.raises(ValueError, match="the gradient through wrong on a chain of 3 is "):
        overhead_ladder.require_plain([*MINIMAL, wrong], 3)
    monkeypatch.setattr(overhead_ladder, "chain", lambda length: lambda x: x * 0)
    with pytest.raises(ValueError, match="zeros prove nothing"):
        overhead_ladder.require_plain(LADDER, 3)


@pytest.mark.parametrize("rung", MINIMAL, ids=lambda rung: rung.name)
def test_a_retained_graph_can_be_differentiated_again(rung: Rung) -> None:
    x = torch.full((4,), 0.5, requires_grad=True)
    y = rung.checkpoint(chain(5), x)
    first, second = (torch.autograd.grad(y.sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert first.all()


def _kernels(rung: Rung) -> int:
    y = rung.checkpoint(chain(5), torch.ones(4, requires_grad=True))
    with Live() as live:
        y.backward(torch.ones(4))
    return live.kernels["sin"]


def test_all_but_hooks_alone_run_no_kernel_after_the_last_tensor_is_there() -> None:
    assert {rung.name: _kernels(rung) for rung in LADDER} == {"hooks": 5, **{rung.name: 4 for rung in LADDER[1:]}}


def _notices(rung: Rung, change: Callable[[list[Tensor]], object]) -> bool:
    weight, kept = torch.full((4,), 0.5, requires_grad=True), []

    def function(x: Tensor) -> Tensor:
        inside = x.sin()
        kept.append(inside)
        return inside.sin() * weight

    y = rung.checkpoint(function, torch.ones(4, requires_grad=True))
    with torch.no_grad():
        change([weight, kept[0].detach()])
    kept.clear()
    try:
        y.backward(torch.ones(4))
    except RuntimeError:
        return True
    return False


def test_a_change_of_what_is_read_again_is_noticed_by_looks() -> None:
    seen = {rung.name: _notices(rung, lambda tensors: tensors[0].mul_(2)) for rung in MINIMAL}
    assert seen == {"hooks": False, "stop": False, "looks": True, "handles": True, "slots": True}


def test_a_change_of_what_is_made_again_is_noticed_by_handles_alone() -> None:
    seen = {rung.name: _notices(rung, lambda tensors: tensors[1].mul_(2)) for rung in MINIMAL}
    assert seen == {"hooks": False, "stop": False, "looks": False, "handles": True, "slots": True}
    assert not any(_notices(rung, lambda tensors: None) for rung in LADDER)


def _after_a_part(rung: Rung) -> int:
    ends: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        first = x.sin()
        ends.append(first.cos().cos())
        return first

    y = rung.checkpoint(function, torch.ones(4, requires_grad=True))
    ends.clear()  # and so are what it has saved, the last tensors of the region
    with Live() as live:
        y.backward(torch.ones(4))
    return live.kernels["cos"]


def test_slots_show_what_nobody_wants_any_more() -> None:
    assert {rung.name: _after_a_part(rung) for rung in MINIMAL[1:]} == {"stop": 2, "looks": 2, "handles": 2, "slots": 1}


def _sequential(name: str) -> Iterator[Peak]:
    return peak_bytes.sequential(Measured(name, OURS[name]), 12, 3)


def _binary(name: str) -> Iterator[Peak]:
    return peak_bytes.binary_nesting(Measured(name, OURS[name]), 8)


@pytest.mark.parametrize("peaks", [*map(_sequential, OURS), *map(_binary, OURS)])
def test_peaks_of_the_chain_are_as_predicted_to_the_byte(peaks: Iterator[Peak]) -> None:
    found = list(peaks)
    assert [one.meter for one in found] == ["storages", "allocator"]
    assert all(one.measured == one.predicted and one.holds for one in found)


def test_a_prediction_that_contradicts_the_closed_form_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_bytes, "binary", lambda layers: uniform(layers, 2))
    with pytest.raises(ValueError, match=r"log2 n \+ 4 is 8 for 16 layers, and the plan takes "):
        list(peak_bytes.binary_nesting(NESTED, 16))


@pytest.mark.parametrize("checkpoint", OURS)
@pytest.mark.parametrize("name", ["attention", "resnet"])
def test_peaks_of_models_follow_from_plain_runs_of_each_block(name: str, checkpoint: str) -> None:
    peaks = list(peak_bytes.blocks(Measured(checkpoint, OURS[checkpoint]), workload(name)))
    assert all(one.holds and one.limit == 0.01 for one in peaks)
    assert not any(replace(one, measured=one.measured * 51 // 50).holds for one in peaks)


def test_a_model_without_equal_gradients_has_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_of_each(model: Workload, step: Any) -> list[Tensor]:
        return [torch.rand(3)]

    monkeypatch.setattr(peak_bytes, "gradients", first_of_each)
    with pytest.raises(ValueError, match="gradients through nested are not plain's"):
        list(peak_bytes.blocks(NESTED, workload("attention")))


def test_the_sum_is_of_boundaries_gradient_output_and_what_a_block_needs() -> None:
    assert peak_bytes.summed([1, 10, 100], [1000, 1000, 1000]) == 100 + (1 + 10 + 1000)
    assert peak_bytes.summed([1, 10, 100], [1000, 5000, 1000]) == 100 + (1 + 10 + 5000)
    assert peak_bytes.summed([7], [1000]) == 1007


@pytest.mark.parametrize("name", OURS)
def test_depth_and_memory_of_a_retained_graph_are_counted(name: str) -> None:
    limit = sys.getrecursionlimit()
    found = figures.depth(name, OURS[name])
    assert found.holds
    assert "its recursion limit" in found.detail
    assert sys.getrecursionlimit() == limit
    left = [one for one in figures.retained(name, OURS[name], 400) if one.name.startswith("bytes")]
    assert [one.holds for one in left] == [True]


def test_memory_is_what_python_allocates_and_what_is_on_the_heap() -> None:
    readings = {(one.checkpoint, one.name): one for one in figures.memory(OURS, length=200, passes=2000)}
    saved = [one for (_, name), one in readings.items() if name.endswith("per saved tensor")]
    assert [one.checkpoint for one in saved] == ["nested", "nested", "native"]
    for one in saved:
        assert one.ours is not None
        assert one.torch is not None
        assert 0 < one.value == one.ours / one.torch
    assert readings["nested", "Python memory per saved tensor"].holds
    assert readings["native", "host memory per saved tensor"].value < readings["nested", "host memory per saved tensor"].value
    left = [one for (_, name), one in readings.items() if name.endswith("a retained backward leaves")]
    assert [one.checkpoint for one in left] == ["nested", "native"]


def test_what_is_allocated_is_counted() -> None:
    allocated = host_memory.allocated_bytes()
    before = allocated()
    kept = bytes(10_000_000)
    assert len(kept) <= allocated() - before < 10_100_000


def test_native_is_left_out_with_the_reason_if_it_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> Any:
        raise native.NativeUnavailableError("no compiler was found")

    monkeypatch.setattr(native, "load_extension", load)
    checkpoints, left_out = available()
    assert list(checkpoints) == ["nested"]
    assert left_out == ["native is not available: no compiler was found"]
    assert not any(rung.name.startswith("native") for rung in overhead_ladder.rungs(checkpoints))


def test_without_a_count_of_the_heap_the_other_figures_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_count() -> Any:
        raise host_memory.UnmeasurableError("not here")

    monkeypatch.setattr(host_memory, "allocated_bytes", no_count)
    found = command.measured(["memory"], 1.0, measured_code.begin())
    assert [one["name"] for one in found["readings"]] == ["Python memory per saved tensor"]
    assert found["left_out"] == ["not here"]


def test_published_results_are_those_that_check_wants(tmp_path: Path, content: dict[str, Any]) -> None:
    write_places(tmp_path, [PAGE])
    store(tmp_path / tables.SECTION.results, content)
    assert tables.SECTION.check(tmp_path) == "the overhead in docs/overhead.md is stale: python -m reprise overhead --write"
    store(tmp_path / tables.SECTION.results, content)
    tables.SECTION.write(tmp_path, content)
    assert tables.SECTION.check(tmp_path) == ""
    marked = (tmp_path / PAGE.page).read_text(encoding="utf-8")
    assert "| nested | overhead ratio, 10 saved<!-- older --> †<!-- /older --> |" in marked  # it has no fingerprint
    page = unmarked(marked)
    assert "Not reached: nested: overhead ratio, 10 saved; native: peak of resnet." in page
    assert "| nested | host memory per saved tensor | – | – | – | 0.700 | – |  |" in page
    assert "- host memory: not here" in page
    assert "| nested | overhead ratio, 10 saved | 5.0 µs | 10.0 µs | 7.0 µs | 0.500 | 0.30 | **not reached** |" in page
    assert "| + early stop, an exception out of the hook | 1.0 µs (0.50) |" in page
    assert "| native | resnet | allocator | 1,000 | 1,011 | 1.0110 | within 1% | **not reached** |" in page
    (tmp_path / PAGE.page).write_text(page.replace("5.0 µs", "2.0 µs"), encoding="utf-8")
    assert "is stale" in tables.SECTION.check(tmp_path)


def test_figures_of_the_least_of_rounds_are_not_called_medians(content: dict[str, Any]) -> None:
    told = tables.markdown(content).split("\n\n")[0]
    assert told.endswith(
        "medians, except for the time per further saved tensor and per region in a row, which are of the fastest rounds."
    )


def test_without_results_the_page_says_so(tmp_path: Path) -> None:
    write_places(tmp_path, [PAGE])
    PAGE.write(tmp_path, tables.SECTION.nothing)
    assert tables.SECTION.check(tmp_path) == ""
    write_places(tmp_path, [PAGE])
    assert "there is no results/overhead-cpu.json" in tables.SECTION.check(tmp_path)


def test_a_run_is_stored_and_printed_and_says_whether_limits_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_places(tmp_path, [PAGE])
    monkeypatch.setattr(command, "climbed", lambda ladder, scale: [])
    monkeypatch.setattr(command, "overhead", lambda checkpoints, scale: iter(()))
    monkeypatch.setattr(command, "growth", lambda checkpoints, scale: iter(()))
    monkeypatch.setattr(command, "peaks", lambda checkpoints: peak_bytes.binary_nesting(NESTED, 4))
    assert command.run_bench(publish=True, root=tmp_path)
    stored = json.loads((tmp_path / tables.SECTION.results).read_text(encoding="utf-8"))
    assert {"python", "torch"} <= stored["versions"].keys()
    assert stored["suite"]["commit"]
    assert [one["predicted"] for one in stored["bytes"]] == [6 * 1024] * 2
    assert tables.SECTION.check(tmp_path) == ""
    assert "6,144" in capsys.readouterr().out
    monkeypatch.setattr(command, "peaks", lambda checkpoints: iter([Peak("nested", "chain", "storages", 10, 11, 0.0)]))
    assert not command.run_bench(parts=["bytes"], root=tmp_path)
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 1


def test_a_page_without_a_place_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    write_places(tmp_path, [PAGE])
    (tmp_path / PAGE.page).write_text("nothing\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"docs/overhead\.md must have <!-- overhead:begin -->"):
        command.run_bench(publish=True, root=tmp_path)
