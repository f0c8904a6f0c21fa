"""The scripts that show faults, as files: ``IMPLEMENTATION-LAW.py`` for each divergence, crash and leak."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import impls
from conformance.replay import standalone
from conformance.results_file import ROOT, Row
from conformance.scripts import binding
from impls import Kind

# Who keeps the laws of a kind, and shows that a smaller program is none that goes wrong by itself.
CONTROLS: Mapping[Kind, str] = {"checkpoint": "nested", "graph": "graph", "offload": "offload"}


def directory_of(results: Path) -> Path:
    """Where the scripts of a results file are: published ones in ``results/programs``, others beside the file."""
    if results.parent == ROOT / "results":
        return results.parent / ("programs" if results.stem.endswith("-cpu") else f"programs-{results.stem.split('-', 1)[1]}")
    return results.with_suffix("")


def file_name(row: Row) -> str:
    """The name of a row's file."""
    return re.sub(r"\W", "-", row["impl"]) + f"-{row['law']}.py"


def files(rows: Iterable[Row]) -> dict[str, str]:
    """The files that rows call for, by name: the scripts of divergences, crashes and leaks."""
    return {file_name(row): row["program"] for row in standalone(rows)}


def with_smaller_programs(rows: Sequence[Row]) -> list[Row]:
    """The rows, with scripts that are as small as can be. Takes some tenths of a second a fault."""
    faults = standalone(rows)
    processes = min(os.cpu_count() or 1, len(faults))
    parts = [faults[number::processes] for number in range(processes)]
    smaller = {
        id(row): text for part, texts in zip(parts, _reduced(parts), strict=True) for row, text in zip(part, texts, strict=True)
    }
    return [{**row, "program": smaller.get(id(row), row["program"])} for row in rows]


def _reduced(parts: Sequence[Sequence[Row]]) -> list[list[str]]:
    """The reduced scripts of rows, each part in a process of its own."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-m", "conformance.reducing"]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=ROOT) for _ in parts]
    for process, part in zip(running, parts, strict=True):
        assert process.stdin is not None
        process.stdin.write(json.dumps([[row["program"], *_bindings(row)] for row in part]))
        process.stdin.close()
    found = []
    for process, part in zip(running, parts, strict=True):
        assert process.stdout is not None
        text = process.stdout.read()
        found.append(json.loads(text) if process.wait() == 0 else [row["program"] for row in part])
    return found


def _bindings(row: Row) -> tuple[str, str]:
    """The lines that bind a row's implementation, and those of its control: none for the control itself."""
    kind: Kind = row.get("subject", "checkpoint")
    name, control = row["impl"], CONTROLS[kind]
    implementation = impls.load(name, kind) if ":" in name else impls.get(name)
    options: Any = row.get("options", "")
    return binding(implementation, options), "" if name == control else binding(impls.get(control), options)


def write(directory: Path, rows: Iterable[Row]) -> None:
    """Write the files of rows into a directory; those of the same implementations that are gone are removed."""
    rows = list(rows)
    directory.mkdir(parents=True, exist_ok=True)
    wanted = files(rows)
    for path in stale(directory, rows):
        path.unlink()
    for name, text in wanted.items():
        (directory / name).write_text(text, encoding="utf-8")


def stale(directory: Path, rows: Sequence[Row]) -> list[Path]:
    """Files in the directory about laws and implementations of these rows that are not to be there."""
    about = {file_name(row) for row in rows}
    return [directory / name for name in sorted(about - files(rows).keys()) if (directory / name).exists()]
