"""The comparison under ``torch.compile``: measured and stored apart, so that it does not disturb the eager one.

Compiling takes minutes, and what it leaves in a process's memory and modules would affect every eager row after it.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch._inductor.cpp_builder import get_cpp_compiler

import impls
from benches.compare import compiled_report as page
from benches.compare import fingerprint_roots
from benches.compare.compiled_steps import Compiled, CompiledRow, TooLongError, measured_rows, offered
from benches.compare.contenders import LeftOut, loaded
from benches.compare.measurement import Subject
from benches.models.workloads import FAKE, KINDS, device_type, workload
from benches.published import store
from conformance.isolation.compiler_cache import own_compiler_cache
from conformance.provenance import measured_code
from conformance.provenance.fingerprints import Sources
from conformance.provenance.measured_code import Origin
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption, did_you_mean
from conformance.rows.results_file import ROOT
from conformance.runs import device_check

BACKEND = "inductor"
# The roots of fingerprints: what makes contenders by name, and what measures.
CHOSEN = tuple(f"benches.compare.compiled_steps:{name}" for name in ("offered", "_checkpoint", "BUDGETS", "PEERS"))
MEASURED = (
    "benches.compare.compiled_steps:measured_rows",
    "benches.compare.measurement:processor_seconds",
    "benches.compare.measurement:device_seconds",
    "benches.models.workloads:_made",
)
# What is not compiled unless it is named, and why. Every kernel is compiled anew for every contender.
LEFT_OUT = {"chain": "the compiler makes one kernel of hundreds of sines, for which g++ takes minutes"}
SECONDS = 25 * 60  # of a run: a workload that nobody named is left out if all contenders take longer than what is left of it
LAST = frozenset({"resnet50", "small-layers"})  # compiled after others, which they are like: resnet and fused-attention


@dataclass(frozen=True)
class Choice:
    """What is compiled, on which workloads and where; without names all that can be had here, on those not in LEFT_OUT.

    Of workloads that are not named, those are left out that take too long to compile, as they turn out.
    """

    implementations: Sequence[str] = ()
    workloads: Sequence[str] = ()
    size: str = "S"
    device: str = "cpu"
    backend: str = BACKEND
    rounds: int = 15


def contenders(names: Sequence[str], device: str) -> tuple[list[Compiled], list[LeftOut]]:
    """Plain and the contenders of these names, or all that can be had here; and what cannot. InvalidOption for another name."""
    there = offered()
    found, missing = list[Compiled](), list[LeftOut]()
    for name in dict.fromkeys(("plain", *names)) if names else there:
        try:
            found.append(there[name]() if name in there else _named(name, device, list(there)))
        except InvalidOption:
            raise
        except ValueError as error:
            if names:
                raise InvalidOption(f"impl is {name!r}, which cannot be had here: {error}") from error
            missing.append(LeftOut(name, str(error)))
    return found, missing


def _named(name: str, device: str, there: Sequence[str]) -> Compiled:
    """A peer, or what a user brings. Whether that compiles is what is measured."""
    if ":" not in name and name not in (*impls.names("checkpoint"), *impls.PEERS, *impls.installed()):
        hint = did_you_mean(name, [*there, *impls.PEERS])
        raise InvalidOption(f"impl is {name!r}; it must be one of {', '.join(there)}, or pkg.mod:attr of your own{hint}")
    one = loaded(name, device)
    return Compiled(one.name, one.family, one)


def measured(choice: Choice, console: Console, origin: Origin) -> dict[str, Any]:
    """Compile and measure: all of it, as it is stored. Raises InvalidOption for what cannot be compiled here at all."""
    torch.set_num_threads(1)
    until = time.perf_counter() + SECONDS
    _require(choice.device)
    head = results_file.header(seed=0, profile="compare", device=choice.device, suite=origin.suite)
    names = [name for name in KINDS if (name in choice.workloads if choice.workloads else name not in LEFT_OUT)]
    names.sort(key=LAST.__contains__)
    rows, about = list[CompiledRow](), dict[str, Any]()
    with own_compiler_cache():
        if told := uncompilable(choice.device, choice.backend):
            raise InvalidOption(f"--compiled: {told}")
        picked, missing = contenders(choice.implementations, choice.device)
        for name in names:
            subject = Subject(workload(name, choice.size, choice.device), choice.device)
            left = math.inf if choice.workloads else until - time.perf_counter()
            try:
                found = measured_rows(subject, picked, choice.backend, choice.rounds, left)
            except TooLongError as error:
                missing.append(LeftOut(name, str(error)))
                continue
            about[name] = {"size": choice.size, "blocks": len(subject.workload.blocks)}
            rows += found
            page.show(name, [asdict(row) for row in found], console)
    left_out = [*missing, *(LeftOut(name, reason) for name, reason in LEFT_OUT.items() if not choice.workloads)]
    compared = [one.contender for one in picked]
    return {
        **{key: head[key] for key in ("machine", "suite", "date")},
        "versions": {**head["versions"], **fingerprint_roots.versions_of(compared), **_compiler()},
        "device": choice.device,
        "size": choice.size,
        "backend": choice.backend,
        "rounds": choice.rounds,
        "threads": torch.get_num_threads(),
        "workloads": about,
        "left_out": [asdict(one) for one in left_out],
        "rows": [asdict(row) for row in rows],
        "fingerprints": fingerprints(origin.sources, picked, [*about]),
    }


def fingerprints(sources: Sources, compared: Sequence[Compiled], workloads: Sequence[str]) -> dict[str, Any]:
    """The fingerprints of a comparison of compiled steps, as they are stored."""
    versions = fingerprint_roots.versions_of(one.contender for one in compared)
    return {
        "contender": {one.name: fingerprint_roots.of_contender(sources, one.contender, versions, CHOSEN) for one in compared},
        "workload": {name: fingerprint_roots.of_workload(sources, name, MEASURED) for name in workloads},
    }


def _require(device: str) -> None:
    """InvalidOption for a device that torch cannot use here, and for fake tensors, of which no step runs."""
    if device == FAKE:
        raise InvalidOption("--compiled: device is 'fake'; compiled steps run, so it must be a real one")
    try:
        device_check.require(device)
    except ValueError as error:
        raise InvalidOption(f"--device: device is {device!r}, and {error}") from error


def uncompilable(device: str, backend: str) -> str:
    """Why nothing can be compiled here; "" if it can. Afterwards the compiler's first use, which takes longer, is over."""
    try:
        torch.compile(torch.sin, backend=backend)(torch.ones(2, device=device, requires_grad=True)).sum().backward()
    except Exception as error:  # noqa: BLE001 - whatever the compiler misses on this machine
        return f"torch.compile fails with backend {backend}: {type(error).__name__}: {str(error).splitlines()[0]}"
    finally:
        torch.compiler.reset()
    return ""


def _compiler() -> dict[str, str]:
    """The C++ compiler that inductor calls, and its version; nothing where there is none."""
    try:
        name = get_cpp_compiler()
        told = subprocess.run([name, "-dumpfullversion"], capture_output=True, text=True, check=True)
    except Exception:  # noqa: BLE001 - torch has an error of its own for it
        return {}
    return {Path(name).name: told.stdout.strip()}


def compare(choice: Choice, *, path: Path | None = None, publish: bool = False, root: Path = ROOT) -> None:
    """Measure, print and store at ``path`` or in ``results/runs``.

    To ``publish`` is to write ``results/compiled-DEVICE.json``, and for the CPU the table of docs/comparison.md. Raises
    ValueError for options that cannot be and for a checkout from which nothing may be published.
    """
    origin = measured_code.begin()
    if publish:
        page.SECTION.require_markers(root)
        origin.require()
    console = Console()
    console = console if console.is_terminal else Console(width=160)  # a log has no width of its own
    started = time.perf_counter()
    content = json.loads(json.dumps(measured(choice, console, origin)))
    path = _stored(path, content, origin, root, publish=publish)
    for line in page.notes(content):
        console.print(line, markup=False, highlight=False)
    console.print(f"{len(content['rows'])} rows in {time.perf_counter() - started:.0f} s: {path}", highlight=False)


def _stored(path: Path | None, content: dict[str, Any], origin: Origin, root: Path, *, publish: bool) -> Path:
    """Where the results are stored, and published; ValueError when they are not the work of the commit."""
    fault, kind = origin.fault() if publish else "", device_type(content["device"])
    name = f"compiled-{kind}" if publish and not fault else f"runs/compiled-{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = path or root / "results" / f"{name}.json"
    store(path, content)
    if fault:
        raise ValueError(f"{path} is not published: {fault}")
    if publish and kind == "cpu" and content["size"] == "S":
        page.SECTION.write(root, content)
    return path
