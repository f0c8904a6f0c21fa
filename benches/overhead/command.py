"""What the checkpoints ``nested`` and ``native`` add to the work they repeat, against PyTorch's: measured, shown and stored.

The workload is a chain of k element-wise operators on four elements, one region, forward and backward, one thread.
The *ideal* is plain forward and backward and one more forward with grad: the work that any checkpoint does. The overhead
ratio is (ours - ideal) / (PyTorch's non-reentrant - ideal). Also measured are the memory per saved tensor, a ladder that
shows what the overhead consists of (*profile*), what must not grow (*growth*), and peaks beside their predictions (*bytes*).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benches.overhead import tables as page
from benches.overhead.chain import LENGTHS, available
from benches.overhead.figures import growth, memory, overhead
from benches.overhead.host_memory import UnmeasurableError
from benches.overhead.ladder import climbed, rungs
from benches.overhead.peak_bytes import peaks
from benches.published import store
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.rows import results_file
from conformance.rows.results_file import ROOT

PARTS = "memory", "growth", "profile", "bytes"
FIGURES = [f"benches.overhead.figures:{name}" for name in ("overhead", "memory", "growth")]
CODE = {"readings": FIGURES, "ladder": ["benches.overhead.ladder:climbed"], "bytes": ["benches.overhead.peak_bytes:peaks"]}


def measured(chosen: Sequence[str], scale: float, origin: Origin) -> dict[str, Any]:
    """Measure these parts, "ratios" among them; as it is stored. Raises ValueError where gradients are not plain's."""
    torch.set_num_threads(1)
    checkpoints, left_out = available()
    found = [*overhead(checkpoints, scale)] if "ratios" in chosen else []
    if "memory" in chosen:
        try:
            found.extend(memory(checkpoints))
        except UnmeasurableError as error:
            left_out.append(str(error))
    found += [*growth(checkpoints, scale)] if "growth" in chosen else []
    steps = climbed(rungs(checkpoints), scale) if "profile" in chosen else []
    most = [*peaks(checkpoints)] if "bytes" in chosen else []
    head = results_file.header(seed=0, profile="overhead", device="cpu", suite=origin.suite)
    return {
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        "scale": scale,
        "threads": torch.get_num_threads(),
        "state": page.state_bytes(),
        "lengths": LENGTHS,
        "left_out": left_out,
        "readings": [asdict(one) for one in found],
        "ladder": [asdict(one) for one in steps],
        "bytes": [asdict(one) for one in most],
        "fingerprints": {"table": {name: measured_code.of_roots(origin.sources, roots) for name, roots in CODE.items()}},
    }


def run_bench(*, parts: Sequence[str] = (), scale: float = 1.0, publish: bool = False, root: Path = ROOT) -> bool:
    """Measure these ``PARTS``, or ratios and memory without any, print and store them; whether every limit holds.

    Results go to ``results/runs``. To ``publish`` is to measure all of it, and write ``results/overhead-cpu.json`` and the
    tables of docs/overhead.md. Raises ValueError for a checkout from which nothing may be published.
    """
    origin = measured_code.begin()
    if publish:
        page.SECTION.require_markers(root)
        origin.require()
    chosen = ["ratios", *PARTS] if publish else parts or ["ratios", "memory"]
    content = json.loads(json.dumps(measured(chosen, scale, origin)))
    fault = origin.fault() if publish else ""
    if publish and not fault:
        store(root / page.SECTION.results, content)
        page.SECTION.write(root, content)
    else:
        path = root / "results" / "runs" / f"overhead-{time.strftime('%Y%m%d-%H%M%S')}.json"
        store(path, content)
    if fault:
        raise ValueError(f"{path} is not published: {fault}")
    console = Console()
    page.show(content, console if console.is_terminal else Console(width=180))  # a log has no width of its own
    return page.kept(content)
