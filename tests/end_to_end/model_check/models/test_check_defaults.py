"""What a check does that nobody asked for: the reentrant checkpoint of a model that uses it, and what hides the package."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import reprise
from reprise.model_check.explanations import explain
from reprise.model_check.plain_runs import UNDECIDED

NUMBERS = itertools.count(1)
ROOT = Path(__file__).parents[4]
TEXT = """
import torch
from torch.utils.checkpoint import checkpoint
print("built")

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(checkpoint(self.layer, x.sin(), use_reentrant=False))

def build():
    print("a model")
    return Model(), torch.ones(1, 2)
"""


class Frozen(nn.Module):
    """Asks for the reentrant checkpoint of a region whose input does not require grad."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(checkpoint(self.layer, x, use_reentrant=True))


def built() -> tuple[nn.Module, torch.Tensor]:
    return Frozen(), torch.ones(1, 2)


class Clock(nn.Module):
    """Multiplies by a number that is another one in each run, and again in the recomputation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = checkpoint(lambda h: (self.layer(h) * next(NUMBERS)).sin(), x, use_reentrant=False)
        return y


def test_the_reentrant_checkpoint_that_a_model_asks_for_is_checked() -> None:
    report = reprise.check(built, steps=1)
    assert {one.implementation: one.verdict for one in report.results} == {
        "torch-nonreentrant": "agrees",
        "nested": "agrees",
        "torch-reentrant": "diverges",
    }
    with pytest.raises(AssertionError, match="torch-reentrant diverges"):
        reprise.assert_equals_plain(built, steps=1)
    assert [one.implementation for one in reprise.check(built, impl="nested", steps=1).results] == ["nested"]


def test_what_one_recorded_step_does_not_show_another_may(monkeypatch: pytest.MonkeyPatch) -> None:
    there, asked = explain._reaching, []

    def reaching(recording: Any) -> Any:
        asked.append(recording)
        return there(recording) if len(asked) == explain.STEPS_RECORDED else iter(())

    monkeypatch.setattr(explain, "_reaching", reaching)
    (result,) = reprise.check(lambda: (Clock(), torch.ones(1, 2)), impl="nested", steps=1).results
    assert result.verdict == "diverges"
    assert result.unlike_forward


def test_what_an_explanation_shows_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain, "STEPS_RECORDED", 0)
    (result,) = reprise.check(lambda: (Clock(), torch.ones(1, 2)), impl="nested", steps=1).results
    assert result.verdict == UNDECIDED
    (result,) = reprise.check(lambda: (Clock(), torch.ones(1, 2)), impl="nested", steps=1, explain=True).results
    assert result.verdict == "diverges"
    assert result.unlike_forward


def test_a_build_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(ValueError, match=r"build is 'module:build', which cannot be called; pass a function"):
        reprise.check("module:build")  # type: ignore[arg-type]


def ran(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "reprise", "check", "model:build", "--impl", "nested", "--steps", "1", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_what_a_model_prints_is_not_in_the_json(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TEXT)
    found = ran(tmp_path, "--json", "-")
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["results"]
    assert "a model" in found.stderr


def test_a_module_that_hides_the_package_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TEXT)
    (tmp_path / "impls.py").write_text("")
    found = ran(tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert (
        found.stderr
        == f"reprise check: {tmp_path / 'impls.py'} hides the package impls of reprise; rename it, or run from another folder\n"
    )
