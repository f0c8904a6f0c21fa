"""The bench of offloading: what waits and what does not, by counts on the simulated device; and what it says without CUDA."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benches import offload
from benches.compare.measurement import MEASURED, RAISES, VOID
from benches.models.workloads import workload
from benches.offload import WAYS, Training, Way, measured
from conformance.rows.option_values import InvalidOption
from conformance.simulated_device import queues as lanes
from conformance.simulated_device.device import second
from impls.graph.streams import CopyStreams

SIM = second("cpu")  # before any backward of the process, which settles for how many devices autograd has threads
BY_NAME = {way.name: way for way in WAYS}
ATTENTION = workload("attention", "S")


def ticking() -> Callable[[], float]:
    """A clock that goes on by one each time that it is looked at."""
    return functools.partial(next, map(float, itertools.count()))


@functools.cache
def rows() -> dict[str, offload.Row]:
    return {row.name: row for row in measured("attention", "S", SIM, 2, ticking())}


def queued(way: Way) -> list[bool]:
    """Whether copies are queued as each block begins to compute in forward."""
    torch.get_device_module(SIM).synchronize()
    one, seen = Training(way, ATTENTION, SIM), list[bool]()
    for block in one.model.children():
        block.register_forward_pre_hook(lambda *_: seen.append(any(lane.tasks for lane in lanes.lanes())))
    one.step()
    torch.get_device_module(SIM).synchronize()
    return seen


def test_with_overlap_the_next_slice_is_queued_before_the_one_in_turn_computes() -> None:
    *before_the_last, last = queued(BY_NAME["overlap"])
    assert all(before_the_last)
    assert len(before_the_last) == len(ATTENTION.blocks) - 1
    assert not last  # there is none after it


def test_without_overlap_every_copy_is_over_before_anything_computes() -> None:
    assert queued(BY_NAME["waited"]) == [False] * len(ATTENTION.blocks)


def test_every_call_that_copies_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    module, waits = torch.get_device_module(SIM), list[None]()
    real = module.synchronize

    def synchronize() -> None:
        waits.append(None)
        real()

    monkeypatch.setattr(module, "synchronize", synchronize)
    Training(BY_NAME["overlap"], ATTENTION, SIM).step()
    assert not waits
    Training(BY_NAME["waited"], ATTENTION, SIM).step()
    blocks = len(ATTENTION.blocks)
    parameters = sum(len(list(block.parameters())) for block in ATTENTION.blocks if isinstance(block, torch.nn.Module))
    loads, gradients = 2 * blocks, parameters
    assert len(waits) == 2 * (loads + gradients)  # before and after


def test_every_way_gives_plains_gradients_and_moves_what_it_must() -> None:
    assert {name: (row.status, row.gradients, row.like) for name, row in rows().items()} == dict.fromkeys(
        BY_NAME, (MEASURED, "equal", "plain")
    )
    plain = Training(BY_NAME["plain"], ATTENTION, SIM).model
    bytes_of = sum(parameter.numel() * parameter.element_size() for parameter in plain.parameters())
    inputs = len(ATTENTION.blocks) * ATTENTION.input.numel() * ATTENTION.input.element_size()
    moved = {name: row.moved for name, row in rows().items()}
    assert moved["plain"] == (0, 0)
    assert moved["overlap"] == moved["waited"] == moved["pageable"] == (2 * bytes_of, bytes_of)
    assert moved["checkpointed"] == (2 * bytes_of + inputs, bytes_of + inputs)


def test_times_are_of_single_steps_and_ratios_of_the_same_round() -> None:
    found = rows()["overlap"]
    assert (found.seconds, found.against) == ((1.0, 1.0, 1.0), (1.0, 1.0, 1.0))
    assert found.samples == ATTENTION.input.shape[0]


@pytest.mark.parametrize(("way", "pinned"), [("overlap", True), ("checkpointed", True), ("pageable", False)])
def test_parameters_are_in_the_memory_that_a_way_says(way: str, pinned: bool) -> None:
    one = Training(BY_NAME[way], ATTENTION, SIM)
    one.step()
    assert {parameter.is_pinned() for parameter in one.model.parameters()} == {pinned}
    assert {parameter.device.type for parameter in one.model.parameters()} == {"cpu"}


def test_a_way_with_other_gradients_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = CopyStreams.fetch

    def wrong(self: CopyStreams, source: torch.Tensor) -> object:
        return fetch(self, source * 2)

    monkeypatch.setattr(CopyStreams, "fetch", wrong)
    plain, other = measured("attention", "S", SIM, 2, ticking(), (BY_NAME["plain"], BY_NAME["overlap"]))
    assert (plain.status, other.status, other.seconds) == (MEASURED, VOID, None)
    assert other.detail == "gradients are not those of plain"


def test_where_plain_does_not_fit_the_others_are_compared_with_the_first_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Training.step

    def without_memory(self: Training) -> None:
        if not self.way.offloaded:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand more")
        step(self)

    monkeypatch.setattr(Training, "step", without_memory)
    plain, overlap, waited = measured("attention", "S", SIM, 2, ticking(), WAYS[:3])
    assert (plain.status, plain.detail) == (RAISES, "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB")
    assert (overlap.status, overlap.like, waited.status, waited.like) == (MEASURED, "overlap", MEASURED, "overlap")
    console = Console(width=160, record=True, file=sys.stderr)
    console.print(offload.table([plain, overlap, waited]))
    assert "OutOfMemoryError" in console.export_text()


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ("cpu", "device is 'cpu'; it must be of type cuda: elsewhere no copy overlaps with anything"),
        ("toaster", "device is 'toaster': "),
    ],
)
def test_another_device_is_refused(device: str, told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        offload.run_bench(device=device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_without_cuda_it_says_what_is_missing() -> None:
    with pytest.raises(InvalidOption, match="device is 'cuda', and torch cannot use it here: "):
        offload.run_bench()


def test_results_are_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(offload, "require", lambda device: None)
    monkeypatch.setattr(offload, "measured", lambda *_: list(rows().values()))
    assert offload.run_bench(device=SIM, publish=True, root=tmp_path)
    assert "offload-sim.json" in capsys.readouterr().out
