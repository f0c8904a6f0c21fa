"""A device that cannot be used is named with what is missing; what runs on CUDA's machine needs neither numpy nor plots."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from conformance.judging.law import all_laws
from conformance.rows.results_file import ROOT
from conformance.runs import device_check

CUDA = torch.cuda.is_available()


def test_the_cpu_can_be_used() -> None:
    device_check.require("cpu")


@pytest.mark.skipif(CUDA, reason="CUDA is there")
@pytest.mark.parametrize(
    ("build", "told"),
    [
        (None, f"This build of torch, {torch.__version__}, has no CUDA: install one that has"),
        ("12.8", "No GPU with a driver for it is found: see nvidia-smi and CUDA_VISIBLE_DEVICES"),
    ],
)
def test_without_cuda_it_says_what_is_missing(build: str | None, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", build)
    with pytest.raises(ValueError, match=r"^torch cannot use it here: ") as caught:
        device_check.require("cuda")
    assert str(caught.value).endswith(told)
    assert "\n" not in str(caught.value)


def test_an_index_beyond_the_last_device_is_told_how_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="There are 1 of this type, counted from 0"):
        device_check.require("cuda:7")


@pytest.mark.parametrize("device", ["toaster", "xpu"])
def test_of_other_devices_torch_says_what_it_knows(device: str) -> None:
    with pytest.raises(ValueError, match=r"^torch cannot use it here: [^\n]+$") as caught:
        device_check.require(device)
    assert "install one" not in str(caught.value)


BLOCKED = """
import importlib, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "matplotlib", "nox", "jinja2", "selenium", "scipy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
sys.path.insert(0, ".")
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def test_laws_and_benches_of_devices_are_imported_without_numpy_and_plots() -> None:
    laws = sorted({law.check.__module__ for law in all_laws().values()})
    names = [*laws, "conformance.runs.plugin", "benches.compare", "benches.compare.steps", "benches.offload"]
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", BLOCKED, *names], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "conformance.laws.test_devices" in laws


@pytest.mark.skipif(CUDA, reason="CUDA is there")
def test_seeds_are_not_queued_for_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[str] = []
    monkeypatch.setattr("torch.cuda.random._lazy_call", lambda call, **kind: queued.append("CUDA"))
    own = torch.cuda.random.manual_seed_all
    monkeypatch.setattr(torch.cuda, "manual_seed_all", own)  # tests run without it, as conftest.py says
    with device_check.no_seeds_for_absent_devices():
        torch.manual_seed(7)
        drawn = torch.rand(3)
    assert queued == []
    assert torch.cuda.manual_seed_all is own
    torch.manual_seed(7)
    assert queued == ["CUDA"]
    assert torch.equal(torch.rand(3), drawn)


def test_a_device_that_is_there_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    own = torch.cuda.manual_seed_all
    with device_check.no_seeds_for_absent_devices():
        assert torch.cuda.manual_seed_all is own
