"""``python -m benches.compare``: time, memory and work of implementations on workloads, beside plain and the ideal.

Everything is measured, none of it asserted but that gradients are plain's: a row of which they are not is void. A complete
run with ``--write`` writes ``results/compare-DEVICE.json``, plots to ``results/compare``, for the CPU the table of
docs/comparison.md, and the page of results anew; other runs write to ``results/runs``. ``--redraw`` and ``--check`` measure
nothing: the first makes plots, table and page from what was published, the status of the second is 1 when the table is stale.
On CUDA the status is 1 as well when what was measured does not reach the limits of ``benches.compare.limits``.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benches.compare import fingerprint_roots, limits
from benches.compare import report as page
from benches.compare.contenders import Contender, contenders
from benches.compare.measurement import Row, Subject
from benches.compare.steps import Comparison, Entry
from benches.models.workloads import FAKE, KINDS, SIZES, Workload, device_type, sweeps, workload
from benches.published import store
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.reports import page as html
from conformance.rows import results_file
from conformance.rows.results_file import ROOT
from conformance.runs import device_check

ROUNDS = 15


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benches.compare", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--impl", action="append", metavar="NAME", help="contender, installed implementation, or pkg.mod:attr; may be repeated")
    add("--workload", action="append", choices=[*KINDS, "sweeps"], help="workload, or the curves; may be repeated")
    add("--size", choices=SIZES, default="S", help="S and M for the CPU, L for a GPU, XL for bytes and operations alone")
    add("--device", default="cpu", help="where steps run: cpu, cuda, cuda:1, or fake for bytes and operations alone")
    add("--budget", action="append", default=[], metavar="BYTES|FRACTION", help="add the fastest plan within this budget")
    add("--backend", default="aot_eager_decomp_partition", help="of torch.compile, such as inductor")
    add("--rounds", type=int, default=ROUNDS, metavar="N", help=f"rounds of each timing, {ROUNDS} if not given")
    add("--results", type=Path, metavar="FILE", help="where the results go")
    add("--write", action="store_true", help="publish a complete run: results, plots, and the table of README.md")
    add("--redraw", action="store_true", help="measure nothing; plots, table and page anew from the published results")
    add("--check", action="store_true", help="measure nothing; fail when README.md has another table than the results")
    return parser


def entries(names: Sequence[str], size: str, device: str, picked: Sequence[Contender]) -> list[Entry]:
    """What is compared on which workload. In the curves are eager contenders that keep nothing on the host."""
    found = [
        Entry(name, functools.partial(workload, name, size, device), picked) for name in KINDS if not names or name in names
    ]
    if "sweeps" in names or (not names and size != "XL"):
        eager = [one for one in picked if not one.compiled and one.family != "host"]
        single = [one for one in eager if one.family != "plan"]  # which has nothing to choose there
        blocks = ((one, eager if len(one.blocks) > 1 else single) for one in sweeps(device))
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


def measured(options: argparse.Namespace, console: Console, origin: Origin) -> dict[str, Any]:
    """Run the comparison: all that was measured, as it is stored. Raises ValueError for options, RuntimeError for pytest's."""
    torch.set_num_threads(1)
    device = FAKE if options.size == "XL" else options.device
    _require(device)
    host = "cpu" if device == FAKE else device
    head = results_file.header(seed=0, profile="compare", device=host, suite=origin.suite)  # before what takes long
    picked, missing = contenders(device, options.backend, options.budget, options.impl or ())
    compared = entries(options.workload or (), options.size, device, picked)
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
        "backend": options.backend,
        "rounds": options.rounds,
        "threads": torch.get_num_threads(),
        "workloads": display.subjects,
        "left_out": [asdict(one) for one in missing],
        "rows": [asdict(row) for row in display.rows],
        "fingerprints": fingerprint_roots.of_all(origin.sources, picked, display.subjects),
    }
    return content | {"limits": limits.stored(limits.limits(json.loads(json.dumps(content))))}


def _require(device: str) -> None:
    """ValueError for a device that torch cannot use here."""
    try:
        device_check.require("meta" if device == FAKE else device)
    except ValueError as error:
        raise ValueError(f"device is {device!r}, and {error}") from error


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command line; 0, or 1 with the reason on stderr, also where a limit is not reached."""
    options = _parser().parse_args(arguments)
    if options.rounds < 2:
        _parser().error(f"rounds is {options.rounds}; it must be 2 or more")
    if options.redraw and (options.impl or options.workload or options.budget or options.results or options.write):
        _parser().error("--redraw measures nothing: without --write, --impl, --workload, --budget and --results")
    if options.write and (options.impl or options.workload or options.budget or options.results):
        _parser().error("--write publishes a complete run: without --impl, --workload, --budget and --results")
    origin = measured_code.begin()
    try:
        if options.check:
            return page.check(root)
        if options.redraw:
            return page.redraw(root) or _shown_anew(root)
        if options.write:
            page.SECTION.require_markers(root)
            origin.require()
        terminal = os.fdopen(os.dup(sys.stdout.fileno()), "w", 1, encoding="utf-8")  # pytest takes the other for itself
        console = Console(file=terminal)
        console = console if console.is_terminal else Console(file=terminal, width=200)  # a log has no width of its own
        started = time.perf_counter()
        content = json.loads(json.dumps(measured(options, console, origin)))
        path = _stored(options, content, origin, root)
        if options.write and _shown_anew(root):
            return 1
        judged = limits.limits(content)
        if shown := limits.table(judged):
            console.print(shown)
        for line in (*page.explained(content), *page.ending(content), *limits.notes(judged)):
            console.print(line, markup=False, highlight=False)
        console.print(f"{len(content['rows'])} rows in {time.perf_counter() - started:.0f} s: {path}", highlight=False)
    except (OSError, ValueError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0 if limits.kept(judged) else 1


def _shown_anew(root: Path) -> int:
    """Make the page of all results anew, which shows the plots, where there is one; 1 when it cannot be made."""
    return html.main([], root) if (root / "results" / "index.html").exists() else 0


def _stored(options: argparse.Namespace, content: dict[str, Any], origin: Origin, root: Path) -> Path:
    """Where the results are stored, and with ``--write`` published; ValueError when they are not the work of the commit."""
    fault, kind = origin.fault() if options.write else "", device_type(content["device"])
    name = f"compare-{kind}" if options.write and not fault else f"runs/compare-{kind}-{time.strftime('%Y%m%d-%H%M%S')}"
    path: Path = options.results or root / "results" / f"{name}.json"
    store(path, content)
    if fault:
        raise ValueError(f"{path} is not published: {fault}")
    if options.write:
        page.publish(root, content)
    return path
