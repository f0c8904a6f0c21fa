"""The table of real models: what ``reprise check`` found in them, from ``results/zoo-*.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.provenance.staleness import Now, note, older_names
from conformance.reports.editions import distinct, measured_on


@dataclass(frozen=True)
class Models:
    """A published run: a line of cells for each model, below the names of implementations; where measured, what is older."""

    file: str
    implementations: tuple[str, ...]
    lines: tuple[tuple[str, str, tuple[str, ...]], ...]
    about: str
    older: str


def models(directory: Path, now: Now | None = None) -> list[Models]:
    """The published runs in a directory."""
    return [_run(path, now) for path in sorted(directory.glob("zoo-*.json"))]


def _run(path: Path, now: Now | None) -> Models:
    head: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    names = tuple(distinct(name for row in head["rows"] for name in row["implementations"]))
    present = now.of_table(head) if now else head
    lines = tuple((row["name"], row["package"], _cells(row, names)) for row in head["rows"])
    older = "; ".join(filter(None, [older_names(present), note(present)]))
    return Models(path.name, names, lines, measured_on(head), older)


def _cells(row: Mapping[str, Any], names: tuple[str, ...]) -> tuple[str, ...]:
    if row["error"]:
        return (f"not checked: {row['error']}", *[""] * (len(names) - 1))
    return tuple(finding(row["implementations"][name]) for name in names)


def finding(found: Mapping[str, Any]) -> str:
    """What was found in a model under an implementation: what differs in the first step, else in later ones, or the verdict."""
    if found["error"]:
        return f"{found['verdict']}: {found['error'].splitlines()[0][:80]}"
    differs = found["differs"] or found["differs_later"]
    return ("rounding: " if found["rounding"] else "") + ", ".join(differs) if differs else str(found["verdict"])
