"""The bench of a transformer layer: what it measures of a small one on the CPU, and what it says without CUDA."""

from __future__ import annotations

import functools
import itertools
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from benches import layer as bench
from benches.compare.measurement import MEASURED, RAISES, VOID
from benches.layer import DTYPE, Row, measured
from benches.papers import korthikanti2022
from benches.papers.korthikanti2022 import EXPECTED, OF_22B, SMALL
from benches.papers.meters.layer_times import WARM, Lap, Layer, timed
from benches.papers.models.transformer_layer import Technique, paper_bytes
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.runs import device_check

NAMES = ["none", "full", "selective"]


def ticking() -> Callable[[], float]:
    """A clock that goes on by one each time that it is looked at."""
    return functools.partial(next, map(float, itertools.count()))


@functools.cache
def rows() -> dict[str, Row]:
    return {row.name: row for row in measured(SMALL, "cpu", 2, ticking())}


def shown(found: list[Row]) -> str:
    console = Console(width=220, record=True, file=sys.stderr)
    console.print(bench.table(found))
    return console.export_text()


def test_every_technique_gives_the_gradients_of_none() -> None:
    found = {name: (row.status, row.gradients, row.detail) for name, row in rows().items()}
    assert found == dict.fromkeys(NAMES, (MEASURED, "equal", ""))


def test_bytes_are_those_of_the_formulas() -> None:
    for name, row in rows().items():
        assert row.saved == row.formula == EXPECTED[name][0]
        assert row.statistics is not None
        assert row.statistics > 0 or name == "full"


def test_the_layer_is_that_of_the_22b_model() -> None:
    assert (OF_22B.s, OF_22B.b, OF_22B.h, OF_22B.a) == (2048, 4, 6144, 64)
    sbh = 2048 * 4 * 6144
    assert Row("none", MEASURED, paper_bytes(OF_22B, Technique())).formula == 34 * sbh + 5 * 64 * 2048**2 * 4


def test_forward_and_backward_are_one_lap_each() -> None:
    for row in rows().values():
        assert (row.forward, row.backward, row.combined) == ((1.0,) * 3, (1.0,) * 3, (2.0,) * 3)
        assert row.overhead == (0.0, 0.0, 0.0)


def test_overheads_are_beside_none_of_the_same_round() -> None:
    none, other = [Lap(1, 2), Lap(2, 4), Lap(1, 2)], [Lap(1, 3.5), Lap(2, 7), Lap(1, 3.5)]
    row = bench._timed(Row("full", MEASURED, 1), other, none)
    assert row.overhead == (0.5, 0.5, 0.5)
    assert (row.forward, row.backward, row.combined) == ((1, 1, 1.5), (3.5, 3.5, 5.25), (4.5, 4.5, 6.75))


def test_rounds_to_warm_up_are_not_counted() -> None:
    class Slow(Layer):
        steps = 0

        def step(self, tell: Callable[[], float]) -> Lap:
            self.steps += 1
            return Lap(100.0 if self.steps <= WARM else 1.0, 1.0)

    one = Slow(SMALL, Technique(), dtype=DTYPE, device="cpu")
    assert timed({"one": one}, 4, ticking()) == {"one": [Lap(1.0, 1.0)] * 4}


@pytest.mark.parametrize(("wrong_from", "told"), [(0, ""), (3, " any more once it was timed")])
def test_a_technique_with_other_gradients_is_void(wrong_from: int, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, calls = Layer.gradients, dict.fromkeys(NAMES, 0)

    def scaled(self: Layer) -> list[torch.Tensor]:
        name = self.technique.recompute
        calls[name] += 1
        found = gradients(self)
        return [one * 1.01 for one in found] if name == "full" and calls[name] >= wrong_from else found

    monkeypatch.setattr(Layer, "gradients", scaled)
    none, full, selective = measured(SMALL, "cpu", 2, ticking())
    assert (none.status, full.status, selective.status) == (MEASURED, VOID, MEASURED)
    assert full.detail == f"gradients are not those of none{told}"
    assert (full.combined, full.saved, full.overhead) == (None, None, None)
    assert full.detail in shown([none, full, selective])


def test_what_raises_is_in_its_row_and_without_none_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Layer.step

    def without_memory(of: str, self: Layer, tell: Callable[[], float]) -> Lap:
        if self.technique.recompute == of:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB\nand more")
        return step(self, tell)

    monkeypatch.setattr(Layer, "step", lambda self, tell: without_memory("full", self, tell))
    told = "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    found = measured(SMALL, "cpu", 2, ticking())
    assert [(row.status, row.detail) for row in found] == [(MEASURED, ""), (RAISES, told), (MEASURED, "")]
    monkeypatch.setattr(Layer, "step", lambda self, tell: without_memory("none", self, tell))
    found = measured(SMALL, "cpu", 2, ticking())
    nothing = "RuntimeError: there is nothing to compare with, for none was not measured"
    assert [(row.status, row.detail) for row in found] == [(RAISES, told), (RAISES, nothing), (RAISES, nothing)]


def test_a_gradient_that_is_missing_proves_nothing() -> None:
    one = Layer(SMALL, Technique(), dtype=DTYPE, device="cpu")
    one.cotangent.zero_()
    with pytest.raises(RuntimeError, match="13 of 13 gradients are missing or nothing but zeros"):
        one.gradients()


@pytest.mark.parametrize(
    ("device", "told"),
    [("cpu", "device is 'cpu'; it must be of type cuda: the paper's"), ("toaster", "device is 'toaster': ")],
)
def test_another_device_is_refused(device: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=told):
        bench.run_bench(device=device, publish=True, root=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA is there")
def test_without_cuda_it_says_what_is_missing() -> None:
    with pytest.raises(InvalidOption, match="device is 'cuda', and torch cannot use it here: "):
        bench.run_bench()


@pytest.mark.parametrize(("status", "fine"), [(MEASURED, True), (VOID, False), (RAISES, False)])
def test_results_are_stored_and_it_is_told_whether_every_row_was_measured(
    status: str, fine: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = [*list(rows().values())[:-1], replace(rows()["selective"], status=status)]
    header: dict[str, Any] = {"versions": {}, "machine": {}, "suite": {}, "date": "2026"}
    monkeypatch.setattr(device_check, "require", lambda device: None)
    monkeypatch.setattr(bench, "measured", lambda *_: found)
    monkeypatch.setattr(results_file, "header", lambda **_: header)
    assert bench.run_bench(publish=True, root=tmp_path) is fine
    assert bench.run_bench(root=tmp_path) is fine
    stored = json.loads((tmp_path / "results" / "layer-cuda.json").read_text(encoding="utf-8"))
    assert stored["shape"] == {"s": 2048, "b": 4, "h": 6144, "a": 64}
    assert (stored["dtype"], stored["tensor_parallel"], stored["paper"]["tensor_parallel"]) == ("bfloat16", 1, 8)
    assert stored["paper"]["times"] == korthikanti2022.TIMES
    assert [row["saved"] for row in stored["rows"]] == [row.saved for row in found]
    assert len(list((tmp_path / "results" / "runs").glob("layer-cuda-*.json"))) == 1
    printed = capsys.readouterr().out
    assert "27.2 ms, +39 %" in printed
    assert "one of 8 tensor parallel ranks" in printed
