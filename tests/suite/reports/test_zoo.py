"""The zoo's table, and what of a run may not be published."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

import impls
from reprise.model_check.comparison import Comparison, TensorsCompared
from reprise.model_check.metering import Costs
from reprise.model_check.regions import Key
from reprise.model_check.report import Result
from reprise.model_check.run import Setting, run
from reprise.zoo import publishing, running, time_of_a_check
from reprise.zoo.architecture import Architecture

OF_IMPLEMENTATION = {
    "verdict": "agrees",
    "error": "",
    "rounding": False,
    "differs": [],
    "differs_later": [],
    "kept": 10,
    "peak": 50,
    "flops_again": 0.5,
}
BUDGET = {
    "name": "GPT-2",
    "package": "transformers",
    "plain": 100,
    "budget": 60,
    "predicted": 58,
    "executed": 58,
    "chosen": 3,
    "regions": 6,
    "agrees": True,
    "flops_plain": 100,
    "flops": 110,
    "flops_of_all": 130,
    "time_beside_all": [0.8, 1.1, 1.3],
}


def row(error: str = "", **differing: Any) -> dict[str, Any]:
    row = {
        "name": "GPT-2",
        "package": "transformers",
        "kind": "decoder",
        "error": error,
        "regions": 6,
        "kept": 100,
        "peak": 100,
    }
    return {**row, "implementations": dict.fromkeys(running.IMPLEMENTATIONS, OF_IMPLEMENTATION) | differing}


def content(*rows: Any, budgets: tuple[Mapping[str, Any], ...] = (BUDGET,), steps: float = 9.0) -> dict[str, Any]:
    header = {"machine": {"processor": "a CPU", "cpus": 2}, "versions": {"torch": "2.13.0"}, "date": "2026-11-25T00:00:00"}
    return {
        **header,
        "suite": {"commit": "0" * 40, "dirty": False},
        "implementations": running.IMPLEMENTATIONS,
        "rows": rows,
        "budgets": budgets,
        "time_of_a_check": {"model": "Llama", "implementations": ["nested"], "checkpointed": steps, "plain": 12.0},
    }


def line(table: str, name: str) -> list[str]:
    (found,) = [line for line in table.splitlines() if line.startswith(f"| {name} | transformers")]
    return [cell.strip() for cell in found.strip("|").split("|")]


def test_a_row_shows_what_differs_and_what_is_saved() -> None:
    differing: Mapping[str, Any] = {
        **OF_IMPLEMENTATION,
        "verdict": "diverges",
        "rounding": True,
        "differs": ["2 of 9 gradients", "1 of 3 buffers"],
    }
    cells = line(publishing.markdown(content(row("", **{"torch-reentrant": differing}))), "GPT-2")
    shown = ["agrees", "rounding: 2 of 9 gradients, 1 of 3 buffers", "agrees", "agrees", "agrees", "10%", "50%", "50%"]
    assert cells == ["GPT-2", "transformers", "decoder", "6", *shown]


def test_a_model_that_was_not_checked_is_in_the_table_and_fails_the_run() -> None:
    failing = content(row(error="ValueError: x"))
    assert "ValueError: x" in line(publishing.markdown(failing), "GPT-2")
    assert publishing.broken(failing) == ["GPT-2 of transformers: ValueError: x"]


class Rejected(nn.Module):
    """Fails when it is run under a dispatch mode, as a step is that is measured."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if _get_current_dispatch_mode_stack():
            raise KeyError("not under a mode")
        return checkpoint(self.layers, x, use_reentrant=False)


def test_a_model_that_cannot_be_measured_has_a_row_that_says_why() -> None:
    one = Architecture("own", "ours", "other", lambda: (Rejected(), torch.ones(1, 2)))
    assert "KeyError: 'not under a mode'" in running.examined(one, ["nested"])["error"]


def test_a_budget_that_fails_is_told_in_the_models_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Any) -> Any:
        raise ValueError("over budget")

    one = Architecture("GPT-2", "transformers", "decoder", lambda: None)
    monkeypatch.setattr(running, "architectures", lambda: (one,))
    monkeypatch.setattr(running, "examined", lambda *_: {"error": ""})
    monkeypatch.setattr(running, "budgeted", fails)
    monkeypatch.setattr(time_of_a_check, "measured", dict)
    assert running.measured(lambda _: None) == {
        "implementations": running.available(),
        "rows": [{"error": "within 60%: ValueError: over budget"}],
        "budgets": [],
        "time_of_a_check": {},
    }


BROKEN = [
    ({"executed": 61, "predicted": 61}, "GPT-2: 61 bytes within 60, agrees: True"),
    ({"predicted": 70}, "GPT-2: 70 bytes were predicted, 58 executed"),
    ({"agrees": False}, "GPT-2: 58 bytes within 60, agrees: False"),
    ({"flops": 131}, "GPT-2: 131 FLOPs with the regions chosen, 130 with all of them"),
    (
        {"time_beside_all": [1.01, 1.1, 1.3]},
        "GPT-2: a step takes 1.10 (1.01 to 1.30) times as long as with all regions, longer in three of four rounds or more",
    ),
]


@pytest.mark.parametrize(("change", "told"), BROKEN)
def test_a_budget_that_is_not_kept_or_not_predicted_fails_the_run(change: dict[str, Any], told: str) -> None:
    assert publishing.broken(content(row())) == []
    assert publishing.broken(content(row(), budgets=({**BUDGET, **change},))) == [told]


def test_a_check_that_takes_as_long_as_fifteen_steps_fails_the_run() -> None:
    assert publishing.broken(content(row(), steps=14.9)) == []
    assert publishing.broken(content(row(), steps=15.0)) == ["a check took as long as 15.0 steps; the limit is 15"]


def test_what_cannot_be_built_here_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        raise ValueError(f"no compiler for {name}")

    assert {*running.IMPLEMENTATIONS} - {*running.available()} <= {*impls.COMPILED}
    monkeypatch.setattr(impls, "find", fails)
    assert {*running.IMPLEMENTATIONS} - {*running.available()} == {"native"}


def test_the_zoo_has_thirty_models_and_ten_budgets_each_by_one_name() -> None:
    names = [(one.package, one.name) for one in running.architectures()]
    budgets = [(package, name) for package, those in running.BUDGETED.items() for name in those]
    assert len({*names}) == len(names) >= 30
    assert len(budgets) >= 10
    assert {*budgets} <= {*names}


def build() -> Any:
    layer = nn.Linear(2, 2)
    return nn.Sequential(layer), lambda _: checkpoint(layer, torch.ones(1, 2), use_reentrant=False).sum()


def test_what_is_stored_of_a_model_is_what_its_row_shows() -> None:
    stored = running.examined(Architecture("own", "ours", "other", build), ["nested"])
    assert stored.keys() == row().keys()
    assert stored["error"] == ""


class Stack(nn.Module):
    """Six regions."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


def test_what_is_stored_of_a_budget_is_what_its_row_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a step with the regions chosen is timed in turn with one in which all are checkpointed."""
    timed: list[frozenset[Key]] = []

    def seen(setting: Setting, checkpoint: Any, **options: Any) -> Any:
        timed.extend([options["only"]] if checkpoint else [])
        return run(setting, checkpoint, **options)

    monkeypatch.setattr(running, "run", seen)
    stored = running.budgeted(Architecture("own", "ours", "other", lambda: (Stack(), torch.randn(64, 8))))
    assert stored.keys() == BUDGET.keys()
    assert stored["time_beside_all"] == tuple(sorted(stored["time_beside_all"]))
    some, every = timed[:2]
    assert (len(some), len(every)) == (stored["chosen"], stored["regions"])
    assert 0 < len(some) < len(every)
    assert timed == [some, every] * running.ROUNDS


def test_what_differs_and_is_no_tensor_is_stored() -> None:
    compared = Comparison(
        *(TensorsCompared(3),) * 3,
        random_streams=(),
        training_flags=("layers",),
        process_state=("grad mode",),
        random_streams_of_later_steps=("step 2 cpu",),
    )
    kept = running.row_of_result(Result("own", "diverges", comparison=compared), Costs(1, 1, 1, 1, 1, 0))
    assert kept["differs"] == ["train() flags", "state of the process"]
    assert kept["differs_later"] == ["random number streams after later steps"]
