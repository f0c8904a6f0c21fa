"""``python -m benches.overhead``: what the nested checkpoint adds to the work it repeats, against PyTorch's.

The workload is a chain of k element-wise operators on four elements, one region, forward and backward, one thread.
*Replay* is plain forward and backward and one more forward with grad: the work that any checkpoint does. The overhead
ratio is (ours - replay) / (PyTorch's non-reentrant - replay); it is printed without an option, with Python's memory per
saved tensor. ``--profile`` is the ladder that shows what is left of it, ``--growth`` what must not grow, ``--bytes`` peaks
beside their predictions. Results go to ``results/runs`` as JSON; ``--write`` measures all of it and publishes it in
``results/overhead-cpu.json`` and docs/overhead.md. The status is 1 when a limit does not hold, also of a run that is published.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benches.overhead import tables as page
from benches.overhead.chain import LENGTHS
from benches.overhead.figures import growth, memory, overhead
from benches.overhead.ladder import climbed
from benches.overhead.peak_bytes import peaks
from benches.published import store
from conformance.provenance import measured_code
from conformance.provenance.measured_code import Origin
from conformance.rows import results_file
from conformance.rows.results_file import ROOT

PARTS = "memory", "growth", "profile", "bytes"
FIGURES = [f"benches.overhead.figures:{name}" for name in ("overhead", "memory", "growth")]
CODE = {"readings": FIGURES, "ladder": ["benches.overhead.ladder:climbed"], "bytes": ["benches.overhead.peak_bytes:peaks"]}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benches.overhead", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--memory", action="store_true", help="Python memory per saved tensor alone")
    add("--growth", action="store_true", help="what must not grow, and depth, alone")
    add("--profile", action="store_true", help="the ladder of minimal checkpoints alone: what is left")
    add("--bytes", action="store_true", help="peak bytes beside their predictions alone")
    add("--scale", type=float, default=1.0, metavar="X", help="that many times the usual number of rounds")
    add("--write", action="store_true", help="measure everything and publish it: results, and the tables of README.md")
    add("--check", action="store_true", help="measure nothing; fail when README.md has other tables than the results")
    return parser


def measured(chosen: Sequence[str], scale: float, origin: Origin) -> dict[str, Any]:
    """Measure these parts, "ratios" among them; as it is stored. Raises ValueError where gradients are not plain's."""
    torch.set_num_threads(1)
    found = [*overhead(scale)] if "ratios" in chosen else []
    found += [*memory()] if "memory" in chosen else []
    found += [*growth(scale)] if "growth" in chosen else []
    steps = climbed(scale) if "profile" in chosen else []
    most = [*peaks()] if "bytes" in chosen else []
    head = results_file.header(seed=0, profile="overhead", device="cpu", suite=origin.suite)
    return {
        **{key: head[key] for key in ("versions", "machine", "suite", "date")},
        "scale": scale,
        "threads": torch.get_num_threads(),
        "state": page.state_bytes(),
        "lengths": LENGTHS,
        "readings": [asdict(one) for one in found],
        "ladder": [asdict(one) for one in steps],
        "bytes": [asdict(one) for one in most],
        "fingerprints": {"table": {name: measured_code.of_roots(origin.sources, roots) for name, roots in CODE.items()}},
    }


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """The command; returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    chosen = [part for part in PARTS if getattr(options, part)]
    if not (0 < options.scale < math.inf):
        parser.error(f"scale is {options.scale}; it must be a number above 0")
    if options.write and (chosen or options.check or options.scale < 1):
        parser.error(f"--write publishes a complete run: without {', '.join(f'--{part}' for part in PARTS)} or --check, and "
                     f"with a scale of 1 or more, not {options.scale:g}")  # fmt: skip
    origin = measured_code.begin()
    try:
        if options.check:
            return page.SECTION.check(root)
        if options.write:
            page.SECTION.require_markers(root)
            origin.require()
        parts = ["ratios", *PARTS] if options.write else chosen or ["ratios", "memory"]
        content = json.loads(json.dumps(measured(parts, options.scale, origin)))
        fault = origin.fault() if options.write else ""
        if options.write and not fault:
            store(root / page.SECTION.results, content)
            page.SECTION.write(root, content)
        else:
            path = root / "results" / "runs" / f"overhead-{time.strftime('%Y%m%d-%H%M%S')}.json"
            store(path, content)
        if fault:
            raise ValueError(f"{path} is not published: {fault}")
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    console = Console()
    page.show(content, console if console.is_terminal else Console(width=180))  # a log has no width of its own
    return 0 if page.kept(content) else 1
