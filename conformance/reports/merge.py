"""Merges the results of several runs, devices, machines and versions into one file, and reports where they contradict.

A merged file holds every run once, as it was, so that merging again, in any order, changes nothing. Results of the same
versions are united when they are read: a verdict that all runs share becomes one row, with the cases of different seeds added
up. If runs contradict each other, all rows are kept side by side and reported; nothing is averaged.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import Results, Row, claim, is_unexpected, read_all, totals, write_all
from conformance.rows.torch_releases import subject

Said = tuple[str, str, bool]


@dataclass(frozen=True)
class Conflict:
    """A law and an implementation about which runs of the same versions contradict each other, and what each says."""

    law: str
    impl: str
    device: str
    versions: str
    said: tuple[str, ...]


def distinct(runs: Iterable[Results]) -> list[Results]:
    """Each run once, in an order that does not depend on the order of the files."""
    found = {json.dumps([run.header, run.rows], sort_keys=True): run for run in runs}
    return [run for _, run in sorted(found.items(), key=lambda item: (item[1].header["date"], item[0]))]


def united(runs: Sequence[Results]) -> tuple[Results, ...]:
    """One result for each combination of versions of torch, Python and suite; rows that agree become one, others stay apart.

    Cases of runs with different seeds are added up. With the same seed the programs are the same, and the run with more
    cases counts.
    """
    groups: dict[tuple[str, ...], list[Results]] = defaultdict(list)
    for run in distinct(runs):
        groups[_versions(run)].append(run)
    return tuple(members[0] if len(members) == 1 else _united(members) for members in groups.values())


def conflicts(runs: Sequence[Results]) -> list[Conflict]:
    """Where runs of the same versions contradict each other."""
    found = []
    for one in united(runs):
        about: dict[tuple[str, str, str], list[Said]] = defaultdict(list)
        for row in one.rows:
            about[row["law"], row["impl"], row["device"]].append(_said(row))
        for key, said in about.items():
            if len(said) > 1:
                told = tuple(_told(run, row) for run in one.runs for row in run.rows if subject(row) == key)
                found.append(Conflict(*key, ", ".join(_versions(one)), told))
    return found


def _versions(run: Results) -> tuple[str, ...]:
    versions, suite = run.header["versions"], run.header["suite"]
    changed = " with uncommitted changes" if suite["dirty"] else ""
    return (f"torch {versions['torch']}", f"python {versions['python']}", f"suite at {suite['commit'][:10]}{changed}")


def _said(row: Row) -> Said:
    return row["verdict"], row["expected"], is_unexpected(row)


def _told(run: Results, row: Row) -> str:
    head = run.header
    where = head["machine"]["accelerator"] or head["machine"]["processor"]
    unexpected = ", unexpected" if is_unexpected(row) else ""
    return (
        f"{row['verdict']}, {claim(row)} {row['expected']}{unexpected}: {row['cases']} cases, seed {head['seed']}, "
        f"profile {head['profile']}, on {where}, {head['date']}"
    )


def _united(runs: Sequence[Results]) -> Results:
    same: dict[tuple[tuple[str, str, str], Said], list[tuple[Any, Row]]] = defaultdict(list)
    for run in runs:
        for row in run.rows:
            same[subject(row), _said(row)].append((run.header["seed"], row))
    rows = tuple(map(_one, same.values()))
    return replace(runs[0], rows=rows, footer=totals(rows), runs=tuple(runs))


def _one(seeded: Sequence[tuple[Any, Row]]) -> Row:
    """One row in place of rows that agree, with the shortest program among them."""
    largest: dict[Any, Row] = {}
    for seed, row in seeded:
        if seed not in largest or row["cases"] > largest[seed]["cases"]:
            largest[seed] = row
    shown = min((row for _, row in seeded), key=lambda row: (not row["program"], len(row["program"])))
    counts: Counter[str] = sum((Counter(row.get("counts", {})) for row in largest.values()), Counter())
    added: dict[str, Any] = {"cases": sum(row["cases"] for row in largest.values())}
    added |= {"counts": dict(counts)} if "counts" in shown else {}
    return {**shown, **added}


def merge(out: Path | None, files: Iterable[Path]) -> tuple[list[str], bool]:
    """Write the runs of these files to ``out``, if given. Returns lines about versions and conflicts, and whether runs agree.

    Raises InvalidOption for a file that cannot be read, before anything is written, and if ``out`` cannot be written.
    """
    try:
        runs = distinct(run for path in files for run in read_all(path))
    except (OSError, ValueError) as error:
        raise InvalidOption(f"FILE: {error}; accepted are results of conformance runs, also merged ones") from error
    try:
        if out is not None:
            write_all(out, runs)
    except OSError as error:
        raise InvalidOption(f"OUT: {error}") from error
    lines, contradictions = [], conflicts(runs)
    for one in united(runs):
        cases = sum(row["cases"] for row in one.rows)
        lines.append(f"{', '.join(_versions(one))}: {len(one.runs) or 1} runs, {len(one.rows)} rows, {cases} cases")
    for conflict in contradictions:
        lines.append(f"conflict: {conflict.impl} on {conflict.device}, law {conflict.law}, {conflict.versions}")
        lines += [f"  {said}" for said in conflict.said]
    return lines, not contradictions
