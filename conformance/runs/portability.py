"""Checks whether verdicts depend on the processor: judges under several settings of its kernels, and compares the rows.

Settings that the processor does not have are left out and named.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from conformance.isolation.cpu_settings import VARIABLE, Kernels
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT, Row, is_unexpected

# Variables by which an environment may choose kernels: a setting sets or removes them.
SAYING = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", VARIABLE)
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
ISA = re.compile(r"^onednn_verbose,.*\binfo,cpu,isa:(.*)$", re.M)
# MKL has other kernels for Intel's processors; it calls these functions to learn whether it runs on one.
ON_INTEL = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"


@dataclass(frozen=True)
class KernelSetting:
    """How kernels are chosen: variables that torch, MKL and oneDNN read when they are loaded, threads, whether oneDNN is used.

    With ``intel``, MKL uses its kernels for Intel's processors on others, too, if possible. The setting took effect if torch
    reports ``capability``, MKL at most ``mkl``, and oneDNN ``isa``; those that are not set are not checked.
    """

    name: str
    about: str
    variables: Mapping[str, str] = field(default_factory=dict)
    threads: int = 1
    onednn: bool = True
    intel: bool = False
    capability: str = ""
    mkl: int | None = None
    isa: str = ""

    def without_effect(self, found: Kernels, isa: str, intel: bool) -> str:
        """Which part of this setting had no effect in a process; "" if all had. ``intel``: MKL must use Intel's kernels."""
        wrong = {
            f"torch's CPU capability is {found.capability}": self.capability not in ("", found.capability),
            f"MKL has instructions of number {found.mkl}": self.mkl is not None and (found.mkl or 0) > self.mkl,
            "MKL does not take this processor for one of Intel's": intel and not found.mkl,
            f"oneDNN says {isa!r} of its instructions": bool(self.isa) and self.isa not in isa,
            f"there are {found.threads} threads": found.threads != self.threads,
            f"oneDNN is {'on' if found.onednn else 'off'}": found.onednn is not self.onednn,
        }
        return "; ".join(told for told, is_wrong in wrong.items() if is_wrong)


SETTINGS = (
    KernelSetting("native", "what the processor has"),
    KernelSetting("intel", "MKL's kernels for Intel's processors, on another one", intel=True),
    KernelSetting(
        "sse4",
        "torch without vector extensions, MKL and oneDNN with SSE4",
        {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
        intel=True,
        capability="DEFAULT",
        mkl=3,
        isa="SSE4.1",
    ),
    KernelSetting(
        "avx2",
        "torch, MKL and oneDNN with AVX2",
        {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
        intel=True,
        capability="AVX2",
        mkl=5,
        isa="AVX2",
    ),
    KernelSetting("two-threads", "two threads for every operator that can use them", threads=2),
    KernelSetting("no-onednn", "torch.backends.mkldnn off", onednn=False),
)


@dataclass(frozen=True)
class Machine:
    """This machine: its kernels without any setting, and the library that makes MKL see a processor of Intel's, if any."""

    native: Kernels
    on_intel: Path | None

    def lacks(self, setting: KernelSetting) -> str:
        """Why a setting cannot be used here; "" if it can."""
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        if setting.variables and not x86:
            return f"the processor is {platform.machine()}, and this setting is one of x86-64"
        if setting.capability == "AVX2" and self.native.capability == "DEFAULT":
            return "the processor lacks AVX2"
        if setting.name == "intel" and self.native.mkl is None:
            return "there is no MKL, or one that does not tell what it has"
        if setting.name == "intel" and self.native.mkl:
            return "the processor is one of Intel's: native has these kernels"
        if setting.name == "intel" and self.on_intel is None:
            return "it needs Linux and a C compiler"
        return ""

    def environment(self, setting: KernelSetting) -> dict[str, str]:
        """The environment for a setting, for processes that have not imported torch yet."""
        kept = {name: value for name, value in os.environ.items() if name not in (*SAYING, *THREADS)}
        said = json.dumps({"threads": setting.threads, "onednn": setting.onednn})
        made = {**kept, **setting.variables, "OMP_NUM_THREADS": str(setting.threads), VARIABLE: said}
        if self.takes_for_intel(setting):
            made["LD_PRELOAD"] = " ".join(filter(None, [str(self.on_intel), kept.get("LD_PRELOAD", "")]))
        return made

    def takes_for_intel(self, setting: KernelSetting) -> bool:
        """Whether MKL is made to see a processor of Intel's."""
        return setting.intel and self.native.mkl == 0 and self.on_intel is not None


def machine(directory: Path) -> Machine:
    """This machine. The library for MKL is built in the directory."""
    bare = Machine(Kernels("", None, 1, onednn=True), None)
    found, _ = probed(bare.environment(SETTINGS[0]))
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if sys.platform != "linux" or compiler is None or found.mkl != 0:
        return Machine(found, None)
    source, library = directory / "intel.c", directory / "intel.so"
    source.write_text(ON_INTEL, encoding="utf-8")
    built = subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source)], check=False)
    return Machine(found, library if built.returncode == 0 else None)


def probed(environment: Mapping[str, str]) -> tuple[Kernels, str]:
    """The kernels of a process in this environment, and the instructions that oneDNN reports."""
    command = [sys.executable, "-m", "conformance.isolation.cpu_settings"]
    verbose = {**environment, "ONEDNN_VERBOSE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=verbose, capture_output=True, text=True, check=True)
    isa = ISA.search(done.stdout)
    told = next(line for line in done.stdout.splitlines() if line.startswith("{"))
    return Kernels(**json.loads(told)), isa[1] if isa else ""


def settled(setting: KernelSetting, there: Machine) -> dict[str, str]:
    """The environment of a setting; a process in it has these kernels, or ends. Raises RuntimeError if it has no effect."""
    environment = there.environment(setting)
    found, isa = probed(environment)
    if wrong := setting.without_effect(found, isa, there.takes_for_intel(setting)):
        raise RuntimeError(f"setting {setting.name!r} has no effect: {wrong}; expected {setting.about}")
    return {**environment, VARIABLE: json.dumps(asdict(found))}


def rows_under(setting: KernelSetting, there: Machine, options: Sequence[str], directory: Path) -> list[Row]:
    """The rows of a run under a setting. Raises RuntimeError if the run fails before it has judged."""
    environment, results = settled(setting, there), directory / f"{setting.name}.jsonl"
    command = [sys.executable, "-m", "pytest", "conformance", "--quiet", "--results", str(results), *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode > 1 or not results.exists():
        raise RuntimeError(f"under setting {setting.name!r} the run ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return list(results_file.read(results).rows)


def differences(runs: Mapping[str, Iterable[Row]]) -> Iterator[str]:
    """A line for each row that has another verdict in a later run than in the first, or is missing from one of the two."""
    verdicts = {name: {(row["law"], row["impl"]): row for row in rows} for name, rows in runs.items()}
    (first, expected), *others = verdicts.items()
    for name, found in others:
        for key in sorted(expected.keys() | found.keys()):
            one, other = (_told(rows.get(key)) for rows in (expected, found))
            if one != other:
                detail = next((row["detail"] for rows in (found, expected) if (row := rows.get(key)) and row["detail"]), "")
                yield f"{key[0]}, {key[1]}: {first} {one}, {name} {other}{': ' if detail else ''}{detail}"


def _told(row: Row | None) -> str:
    """A verdict, marked if it is not as declared, which includes a law that was not tested."""
    return "no row" if row is None else row["verdict"] + (" (not as declared)" if is_unexpected(row) else "")


def compare(settings: Sequence[str], options: Sequence[str], say: Callable[[str], object]) -> bool:
    """Judge under these settings, with options of a conformance run. Returns whether verdicts are the same under all.

    Raises InvalidOption for settings and options with which nothing is compared, and RuntimeError if a run failed, a setting
    has no effect, or fewer than two can be used here.
    """
    if any(option.partition("=")[0] == "--results" for option in options):
        raise InvalidOption("--results has no effect: the results of each setting are compared, and none is kept")
    chosen = [setting for setting in SETTINGS if setting.name in settings]
    if len(chosen) < 2:
        names = ", ".join(setting.name for setting in SETTINGS)
        raise InvalidOption(f"--settings has {' '.join(settings)}; it takes two to compare: {names}")
    with tempfile.TemporaryDirectory() as made:
        there, runs = machine(Path(made)), dict[str, list[Row]]()
        for setting in chosen:
            if lacking := there.lacks(setting):
                say(f"left out: {setting.name} ({setting.about}): {lacking}")
                continue
            rows = runs[setting.name] = rows_under(setting, there, options, Path(made))
            say(f"{setting.name} ({setting.about}): {len(rows)} verdicts, {sum(map(is_unexpected, rows))} unexpected")
    found = list(differences(runs)) if runs else []
    for line in found:
        say(line)
    say(f"{len(found)} verdicts depend on the setting, of {len(next(iter(runs.values()), []))} under each of {len(runs)}")
    if len(runs) < 2:
        raise RuntimeError("nothing is compared: fewer than two settings can be used here")
    return not found
