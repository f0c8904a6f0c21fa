"""Settings of kernels reach every process or end it, what cannot be had is named, and a verdict that depends on one is told."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance.isolation import cpu_settings
from conformance.isolation.cpu_settings import VARIABLE, Kernels, hold, present
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT
from conformance.runs import portability
from conformance.runs.portability import SETTINGS, KernelSetting, Machine, differences
from tests.support.synthetic_results import row

HERE = Kernels("AVX512", 0, 1, onednn=True)
NAMED = {setting.name: setting for setting in SETTINGS}


def test_the_same_verdicts_differ_nowhere() -> None:
    rows = [row("one", "plain"), row("two", "nested", "diverges")]
    assert list(differences({"native": rows, "sse4": rows[::-1]})) == []


def test_another_verdict_is_told_with_both_and_the_detail() -> None:
    other = row("one", "offload", "diverges") | {
        "expected": "agrees",
        "detail": "forward: plain 1, here 2",
        "as_declared": False,
    }
    rows = {"native": [row("one", "offload")], "avx2": [row("one", "offload")], "sse4": [other]}
    told = "one, offload: native agrees, sse4 diverges (not as declared): forward: plain 1, here 2"
    assert list(differences(rows)) == [told]


def test_a_law_that_proves_nothing_is_another_verdict() -> None:
    untested = row("one", "plain") | {"as_declared": False, "detail": "only 0 of 3 cases prove anything"}
    assert "avx2 agrees (not as declared)" in next(differences({"native": [row("one", "plain")], "avx2": [untested]}))


def test_a_row_that_is_missing_is_a_difference() -> None:
    rows = {"native": [row("one", "plain")], "sse4": [row("two", "plain")]}
    assert list(differences(rows)) == ["one, plain: native agrees, sse4 no row", "two, plain: native no row, sse4 agrees"]


@pytest.mark.parametrize(
    ("setting", "found", "isa", "told"),
    [
        ("sse4", HERE, "Intel SSE4.1", "torch's CPU capability is AVX512"),
        ("sse4", replace(HERE, capability="DEFAULT", mkl=7), "Intel SSE4.1", "MKL has instructions of number 7"),
        ("avx2", replace(HERE, capability="AVX2", mkl=5), "Intel AVX-512", "oneDNN says 'Intel AVX-512' of its instructions"),
        ("two-threads", HERE, "", "there are 1 threads"),
        ("no-onednn", HERE, "", "oneDNN is on"),
        ("sse4", replace(HERE, capability="DEFAULT", mkl=3), "Intel SSE4.1", ""),
    ],
)
def test_what_a_setting_does_not_change_is_told(setting: str, found: Kernels, isa: str, told: str) -> None:
    assert NAMED[setting].without_effect(found, isa, intel=False) == told


def test_mkl_that_does_not_believe_in_an_intel_is_told() -> None:
    assert NAMED["intel"].without_effect(HERE, "", intel=True) == "MKL does not take this processor for one of Intel's"


def test_what_the_processor_cannot_do_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    amd, intel = Machine(HERE, Path("intel.so")), Machine(replace(HERE, mkl=7), None)
    assert [name for name, one in NAMED.items() if amd.lacks(one)] == []
    assert {name: intel.lacks(one) for name, one in NAMED.items() if intel.lacks(one)}.keys() == {"intel"}
    assert "needs Linux and a C compiler" in Machine(HERE, None).lacks(NAMED["intel"])
    assert "lacks AVX2" in Machine(replace(HERE, capability="DEFAULT"), None).lacks(NAMED["avx2"])
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert "one of x86-64" in amd.lacks(NAMED["sse4"])


def test_an_environment_that_holds_kernels_already_is_not_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    monkeypatch.setenv("LD_PRELOAD", "other.so")
    there = Machine(HERE, Path("intel.so"))
    native, sse4 = (there.environment(NAMED[name]) for name in ("native", "sse4"))
    assert "ATEN_CPU_CAPABILITY" not in native
    assert (native["LD_PRELOAD"], sse4["LD_PRELOAD"]) == ("other.so", "intel.so other.so")
    assert json.loads(native[VARIABLE]) == {"threads": 1, "onednn": True}


def test_kernels_that_are_not_there_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps(asdict(present()) | {"capability": "ABACUS", "threads": 1}))
    with pytest.raises(RuntimeError, match=r"'capability': 'ABACUS'.*a setting did not reach it"):
        hold()


def test_threads_and_onednn_are_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    before = present()
    try:
        for threads, onednn in ((2, False), (1, True)):
            monkeypatch.setenv(VARIABLE, json.dumps({"threads": threads, "onednn": onednn}))
            hold()
            assert (present().threads, present().onednn) == (threads, onednn)
    finally:
        torch.set_num_threads(before.threads)
        torch.backends.mkldnn.set_flags(before.onednn)


APART = """
from conformance.judging.law import PROFILES
from conformance.isolation.sandbox import Contained
from conformance.isolation.sandbox_worker import Setting
if __name__ == "__main__":
    Contained(Setting("torch-selective", "checkpoint", "cpu", PROFILES["quick"], 0)).implementation
"""


def test_what_the_environment_says_reaches_the_process_of_an_implementation(tmp_path: Path) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    environment = {**os.environ, VARIABLE: json.dumps({"capability": "ABACUS"}), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"(?s)ValueError.*process that was to load it.*a setting did not reach it", done.stderr)


@pytest.mark.parametrize("workers", ["0", "2"])
def test_what_the_environment_says_reaches_a_run_and_its_workers(workers: str) -> None:
    environment = {**os.environ, VARIABLE: json.dumps({"capability": "ABACUS"})}
    command = [sys.executable, "-m", "pytest", "conformance", "-n", workers, "-k", "core_programs_equal_plain"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "a setting did not reach it" in done.stdout + done.stderr


def test_a_setting_without_effect_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portability, "probed", lambda environment: (HERE, ""))
    with pytest.raises(RuntimeError, match="setting 'two-threads' has no effect: there are 1 threads; expected two"):
        portability.settled(NAMED["two-threads"], Machine(HERE, None))


def test_a_run_that_judges_nothing_ends_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portability, "machine", lambda directory: Machine(HERE, None))
    monkeypatch.setattr(portability, "settled", lambda setting, there: dict(os.environ))
    with pytest.raises(RuntimeError, match="under setting 'native' the run ended with 5"):
        portability.compare(["native", "two-threads"], ["-k", "no_law_at_all", "-n", "0"], print)


def test_a_comparison_takes_two_settings() -> None:
    with pytest.raises(InvalidOption, match="--settings has native; it takes two to compare: native, intel"):
        portability.compare(["native"], [], print)
    with pytest.raises(InvalidOption, match="--results has no effect"):
        portability.compare([*NAMED], ["--results=x"], print)


@pytest.mark.parametrize(("verdict", "differing"), [("agrees", 0), ("diverges", 1)])
def test_it_is_told_whether_verdicts_depend_on_a_setting(verdict: str, differing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(setting: KernelSetting, *_: Any) -> list[Any]:
        return [row("one", "plain", "agrees" if setting.name == "native" else verdict)]

    monkeypatch.setattr(portability, "machine", lambda directory: Machine(replace(HERE, mkl=7), None))
    monkeypatch.setattr(portability, "rows_under", rows)
    told: list[str] = []
    assert portability.compare(["native", "intel", "two-threads"], [], told.append) is not bool(differing)
    assert told[1] == (
        "left out: intel (MKL's kernels for Intel's processors, on another one): "
        "the processor is one of Intel's: native has these kernels"
    )
    assert told[-1] == f"{differing} verdicts depend on the setting, of 1 under each of 2"


def test_every_setting_that_is_there_has_its_effect(tmp_path: Path) -> None:
    there = portability.machine(tmp_path)  # which is what there is under "native"
    both = replace(NAMED["two-threads"], onednn=False)  # one process for two settings, since it takes seconds to start
    others = [setting for setting in SETTINGS if setting.name not in ("native", "two-threads", "no-onednn")]
    for setting in (both, *others):
        if not there.lacks(setting):
            said = json.loads(portability.settled(setting, there)[VARIABLE])
            assert (said["threads"], said["onednn"]) == (setting.threads, setting.onednn)
    assert cpu_settings.told({}) == {}
