"""Time, memory and work of implementations on workloads, beside plain and the ideal: measured, shown and stored.

A row is void unless its gradients are plain's. On CUDA, ``nested`` must also reach the limits of ``benches.compare.limits``.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import impls
from benches.compare import fingerprint_roots, limits
from benches.compare import report as page
from benches.compare.contenders import Contender, LeftOut, contenders, offered
from benches.compare.measurement import Row, Subject
from benches.compare.steps import Comparison, Entry
from benches.models.workloads import FAKE, KINDS, Workload, device_type, sweeps, workload
from benches.published import store
from conformance.page import page as html
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption, did_you_mean
from conformance.rows.results_file import ROOT
from conformance.runs import device_check

ROUNDS = 15


@dataclass(frozen=True)
class Choice:
    """What is compared, on which workloads and where; all that can be had here without names."""

    implementations: Sequence[str] = ()
    workloads: Sequence[str] = ()
    size: str = "S"
    device: str = "cpu"
    budgets: Sequence[str] = ()
    rounds: int = ROUNDS


def entries(names: Sequence[str], size: str, device: str, picked: Sequence[Contender]) -> list[Entry]:
    """What is compared on which workload. Curves have only contenders that keep nothing on the host."""
    found = [
        Entry(name, functools.partial(workload, name, size, device), picked) for name in KINDS if not names or name in names
    ]
    if "sweeps" in names or (not names and size != "XL"):
        curves = [one for one in picked if one.family != "host"]
        single = [one for one in curves if one.family != "plan"]  # which has nothing to choose there
        blocks = ((one, curves if len(one.blocks) > 1 else single) for one in sweeps(device))
        found += [Entry(one.name, functools.partial(_same, one), those) for one, those in blocks]
    return found


def _same(one: Workload) -> Workload:
    return one


class _Display:
    """A line for what is measured, and the table of each workload once it is complete."""

    def __init__(self, console: Console, total: int) -> None:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self.progress = Progress(*columns, console=console, transient=True, auto_refresh=False)  # no thread beside timings
        self.task = self.progress.add_task("workloads", total=total)
        self.console = console
        self.rows: list[Row] = []
        self.subjects: dict[str, dict[str, Any]] = {}

    def told(self, row: Row, subject: Subject, entry: Entry) -> None:
        """A row was measured."""
        one = subject.workload
        self.rows.append(row)
        self.subjects[one.name] = self.subjects.get(one.name, {}) | {
            "size": one.size,
            "blocks": len(one.blocks),
            "saved": subject.saved,
            "x": one.x,
            "flops": subject.work.flops,
            "operators": subject.work.operators,
            "repeats": subject.repeats,
        }
        if limits.needs_oracle(row, subject.device):
            self.subjects[one.name] |= limits.oracle(subject)
        of_this = [row for row in self.rows if row.workload == one.name]
        self.progress.update(self.task, advance=1, description=f"{row.workload}: {row.contender}")
        self.progress.refresh()
        if len(of_this) == len(entry.contenders):
            page.show(one.name, [json.loads(json.dumps(asdict(row))) for row in of_this], self.console)


def measured(options: Choice, console: Console, origin: Origin) -> dict[str, Any]:
    """Run the comparison: all that was measured, as it is stored. Raises ValueError for options, RuntimeError for pytest's."""
    torch.set_num_threads(1)
    device = FAKE if options.size == "XL" else options.device
    _require(device)
    host = "cpu" if device == FAKE else device
    head = results_file.header(seed=0, profile="compare", device=host, suite=origin.suite)  # before what takes long
    picked, missing = _chosen(device, options)
    compared = entries(options.workloads, options.size, device, picked)
    display = _Display(console, sum(len(entry.contenders) for entry in compared))
    comparison = Comparison(compared, device=device, rounds=options.rounds, told=display.told)
    clock = "device_seconds" if device_type(device) == "cuda" else "processor_seconds"
    arguments = [
        *("-c", str(ROOT / "pyproject.toml"), str(Path(__file__).with_name("steps.py"))),
        *("-qq", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-o", "console_output_style=classic"),
        *("--benchmark-quiet", f"--benchmark-timer=benches.compare.measurement.{clock}"),
    ]
    try:
        with display.progress:
            status = pytest.main(arguments, plugins=[comparison])
    finally:
        gc.unfreeze()
    if status not in (0, 5):
        raise RuntimeError(f"pytest ended with status {int(status)}; what it printed says why")
    there = {one.metadata["Name"] for one in metadata.distributions()}
    names = [name for name in ("pytest-benchmark", "numpy", "matplotlib") if name in there]
    versions = {name: metadata.version(name) for name in names} | fingerprint_roots.versions_of(picked)
    content = {
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        "versions": {**head["versions"], **versions},
        "device": device,
        "size": options.size,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "workloads": display.subjects,
        "left_out": [asdict(one) for one in missing],
        "rows": [asdict(row) for row in display.rows],
        "fingerprints": fingerprint_roots.of_all(origin.sources, picked, display.subjects),
    }
    return content | {"limits": limits.stored(limits.limits(json.loads(json.dumps(content))))}


def _chosen(device: str, options: Choice) -> tuple[list[Contender], list[LeftOut]]:
    """The contenders that were asked for, and what was left out. InvalidOption for one that cannot be had here."""
    try:
        return contenders(device, options.budgets, options.implementations)
    except ValueError as error:
        there = [*offered(device), *impls.installed()]
        unknown = next((name for name in options.implementations if name not in there and ":" not in name), "")
        raise InvalidOption(f"{error}{did_you_mean(unknown, there)}") from error


def _require(device: str) -> None:
    """InvalidOption for a device that torch cannot use here."""
    try:
        device_check.require("meta" if device == FAKE else device)
    except ValueError as error:
        raise InvalidOption(f"--device: device is {device!r}, and {error}") from error


def compare(options: Choice, *, path: Path | None = None, publish: bool = False, root: Path = ROOT) -> bool:
    """Measure, print and store at ``path`` or in ``results/runs``; whether what was measured reaches the limits.

    To ``publish`` is to write ``results/compare-DEVICE.json``, plots to ``results/compare``, for the CPU the table of
    docs/comparison.md, and the page of results. Raises ValueError for options that cannot be and for a checkout from which
    nothing may be published, RuntimeError where pytest cannot run.
    """
    origin = measured_code.begin()
    if publish:
        page.SECTION.require_markers(root)
        origin.require()
    terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", 1, encoding="utf-8")  # pytest takes the other for itself
    console = Console(file=terminal)
    console = console if console.is_terminal else Console(file=terminal, width=200)  # a log has no width of its own
    started = time.perf_counter()
    content = json.loads(json.dumps(measured(options, console, origin)))
    path = _stored(path, content, origin, root, publish=publish)
    if publish:
        _show_anew(root)
    judged = limits.limits(content)
    if shown := limits.table(judged):
        console.print(shown)
    for line in (*page.explained(content), *page.ending(content), *limits.notes(judged)):
        console.print(line, markup=False, highlight=False)
    console.print(f"{len(content['rows'])} rows in {time.perf_counter() - started:.0f} s: {path}", highlight=False)
    return limits.kept(judged)


def redraw(root: Path = ROOT) -> None:
    """Make plots, the table of docs/comparison.md and the page from what is published. Raises ValueError where nothing is."""
    page.redraw(root)
    _show_anew(root)


def _show_anew(root: Path) -> None:
    """Make the page of all results anew, which shows the plots, where there is one."""
    if (root / "results" / "index.html").exists():
        html.write(root)


def _stored(path: Path | None, content: dict[str, Any], origin: Origin, root: Path, *, publish: bool) -> Path:
    """Where the results are stored, and published; ValueError when they are not the work of the commit."""
    fault, kind = origin.fault() if publish else "", device_type(content["device"])
    name = f"compare-{kind}" if publish and not fault else f"runs/compare-{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    path = path or root / "results" / f"{name}.json"
    store(path, content)
    if fault:
        raise ValueError(f"{path} is not published: {fault}")
    if publish:
        page.publish(root, content)
    return path
