"""reprise check: how often it runs the model, by kind of run, what that amounts to in FLOPs; and a long graph."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.flop_counter import FlopCounterMode

from reprise.model_check import metering, regions
from reprise.model_check.checking import check
from reprise.model_check.report import Report
from reprise.model_check.run import now
from tests.support.checked_models import Block, built

LAYERS = 12
PAGE = Path(__file__).parents[3] / "docs" / "checking-your-model.md"


def is_metered() -> bool:
    return any(isinstance(one, metering._StepMeter) for one in _get_current_dispatch_mode_stack())


class Layer(nn.Linear):
    """A layer whose runs are counted: those of a region's recomputation are ``again``."""

    counts: Counter[str]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = regions.current_run()
        self.counts["again" if one is not None and one.number else "layers"] += 1
        return super().forward(x).sin()


class Model(nn.Module):
    """Twelve layers; each step is counted as plain's or checkpointed, metered or not."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__()
        self.layers, self.counts = nn.Sequential(*(Layer(8, 8) for _ in range(LAYERS))), counts

    def forward(self, x: torch.Tensor) -> Any:
        kind = "plain" if regions._active[-1].checkpoint is None else "checkpointed"
        self.counts[f"{kind}, metered" if is_metered() else kind] += 1
        x = self.layers(x)
        x.register_hook(lambda _: self.counts.update(["backward"]))
        return x


def counted(impl: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[Counter[str], int, Report]:
    """How often the model was built and ran, by kind; FLOPs of the whole check; and its report."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(Layer, "counts", counts, raising=False)

    def build() -> Any:
        counts["built"] += 1
        return Model(counts), torch.randn(2, 8)

    with FlopCounterMode(display=False) as flops:
        report = check(build, regions="layers.*", impl=impl)
    return counts, flops.get_total_flops(), report


@pytest.mark.parametrize("impl", [["nested"], ["torch-nonreentrant", "nested"]])
def test_each_implementation_takes_three_runs_beside_five_of_plain(impl: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    counts, flops, report = counted(impl, monkeypatch)
    several = len(impl)
    steps = {"plain": 4, "plain, metered": 1, "checkpointed": 2 * several, "checkpointed, metered": several}
    assert {kind: counts[kind] for kind in steps} == steps
    assert (counts["built"], counts["backward"]) == (3 + 2 * several, 5 + 3 * several)
    assert (counts["layers"], counts["again"]) == ((5 + 3 * several) * LAYERS, 3 * several * LAYERS)
    assert report.agrees
    assert report.plain
    assert flops == 5 * report.plain.flops + sum(3 * one.costs.flops for one in report.results if one.costs)


def test_the_page_says_how_often_the_model_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, _, _ = counted(["torch-nonreentrant", "nested"], monkeypatch)
    page = PAGE.read_text(encoding="utf-8")
    alone, _, _ = counted(["nested"], monkeypatch)
    assert f"with two implementations that agree, the model runs {counts['backward']} times" in page
    assert f"with one implementation, {alone['backward']} times" in page
    assert f"built anew {counts['built']} times" in page


def fails_under_the_meter(_: Any, x: torch.Tensor) -> torch.Tensor:
    if is_metered():
        raise KeyError("meter")
    return x


def differs_under_the_meter(_: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if is_metered() else x


@pytest.mark.parametrize(("after", "has_figures"), [(fails_under_the_meter, False), (differs_under_the_meter, True)])
def test_a_plain_run_that_the_meter_changes_is_replaced(after: Block, has_figures: bool) -> None:
    report = check(built(after), impl="nested")
    assert report.spread.agrees
    assert report.plain_runs == 2
    assert report.results[0].verdict == "agrees"
    assert (report.plain is not None, report.results[0].costs is not None) == (has_figures, has_figures)
    assert "nested agrees" in str(report)
    told = "the model fails without checkpointing, in forward of step 1 while it is measured"
    assert (told in report.not_measured) is not has_figures
    assert report.results[0].not_measured.startswith("the step fails while it is measured at ") is not has_figures


def on_mps() -> Any:
    """What stands for a model on a device that this machine lacks."""
    return SimpleNamespace(parameters=lambda: iter([SimpleNamespace(device=torch.device("mps", 0))]))


def test_any_accelerator_is_waited_for_before_the_time_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[torch.device] = []
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert now(on_mps()) > 0
    assert waited == [torch.device("mps", 0)]


def test_the_first_step_warms_up_and_does_not_count_for_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("reprise.model_check.run.now", lambda _: time if (time := float(next(ticks))) < 1 else time + 100)
    (result,) = check(built(), impl="nested").results  # every step takes 1, but the first one, which takes 101
    assert (result.time_ratio, result.time_spread) == (1.0, (1.0, 1.0))


def test_an_allocator_that_does_not_count_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = check(built(), impl="nested", steps=1).results[0].costs
    found = metering._counting_allocator
    monkeypatch.setattr(metering, "_counting_allocator", lambda _: found(on_mps()))
    assert check(built(), impl="nested", steps=1).results[0].costs == cpu
    assert found(on_mps()) is None


def test_a_device_that_counts_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    counting = SimpleNamespace(memory_allocated=None, max_memory_allocated=None, reset_peak_memory_stats=None)
    monkeypatch.setattr(torch, "mps", counting)
    assert metering._counting_allocator(on_mps()) == (counting, torch.device("mps", 0))


class Chain(nn.Module):
    """A region, and a chain of operators after it that is longer than a small stack."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.utils.checkpoint.checkpoint(self.first, x, use_reentrant=False)
        for _ in range(8000):
            x = x * 1.0
        return x


def build_chain() -> Any:
    return Chain(), torch.ones(2, 4)


def test_no_node_of_a_long_graph_is_read() -> None:
    """Each node that was read is freed by recursion, which ends the process if the chain is long beside the stack."""
    check = f"import reprise; print(reprise.check({__name__}.build_chain, impl='nested', steps=1).agrees)"
    command = f'ulimit -s 1024; exec "{sys.executable}" -c "import {__name__}; {check}"'
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "True\n"), ran.stderr
