"""Releases of torch: the one that the project pins, and how results of another one relate to it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

from conformance.rows.results_file import ROOT, Results, Row

PYPROJECT = ROOT / "pyproject.toml"


def pinned(pyproject: Path = PYPROJECT) -> str:
    """The release of torch that nox installs unless it is told otherwise, such as ``"2.13.0"``.

    Raises OSError without the file, ValueError when its dependency group ``torch`` is not one requirement with ``==``.
    """
    with pyproject.open("rb") as file:
        group = tomllib.load(file)["dependency-groups"]["torch"]
    name, equals, release = group[0].partition("==") if len(group) == 1 else ("", "", "")
    if name != "torch" or not equals:
        raise ValueError(f"{pyproject}: dependency group torch is {group!r}; accepted is one requirement, torch==RELEASE")
    return release


def release(version: str) -> str:
    """The release of a version without its build: ``"2.15.0"`` of ``"2.15.0+cu130"``."""
    return version.partition("+")[0]


def counterpart(one: Results, others: Iterable[Results]) -> Results | None:
    """Results with another release that judge the same implementations on the same devices; None if there are none."""
    mine = release(one.header["versions"]["torch"]), _judged(one)
    for other in others:
        if release(other.header["versions"]["torch"]) != mine[0] and _judged(other) >= mine[1]:
            return other
    return None


def _judged(results: Results) -> set[tuple[str, str]]:
    return {(row["impl"], row["device"]) for row in results.rows}


def without_repeated_programs(rows: Sequence[Row], other: Results) -> list[Row]:
    """The rows; those with the same verdict in ``other`` name its file in place of their program."""
    verdicts = by_subject(other.rows)
    repeated = [verdicts.get(subject(row)) == (row["verdict"],) for row in rows]
    return [
        {**row, "program": "", "program_in": other.path.name} if same and row["program"] else dict(row)
        for row, same in zip(rows, repeated, strict=True)
    ]


def by_subject(rows: Iterable[Row]) -> dict[tuple[str, str, str], tuple[str, ...]]:
    """The verdicts by law, implementation and device: one, or several where runs contradict each other."""
    found: dict[tuple[str, str, str], tuple[str, ...]] = {}
    for row in rows:
        found[subject(row)] = (*found.get(subject(row), ()), row["verdict"])
    return found


def subject(row: Row) -> tuple[str, str, str]:
    """Law, implementation and device: what a verdict is about."""
    return row["law"], row["impl"], row["device"]
