"""Stores the scripts of a run as files, ``IMPLEMENTATION-LAW.py`` for each fault, in a directory that belongs to its results.

For the CPU's published results that is ``results/programs``. A published row has the path of its script, whose text is in that
file alone. Rows of other runs have the text as well, so that a results file can be moved without its directory.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from subprocess import PIPE
from typing import Any

import impls
from conformance.reproducers.reduction import ENDED, Task
from conformance.reproducers.replay import standalone
from conformance.reproducers.script import binding, binding_in, self_contained
from conformance.reproducers.script_syntax import has_status, subject
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT, Row, is_unexpected
from impls import Kind

# An implementation that keeps the laws of a kind. If a smaller program goes wrong under it, the program itself is wrong.
CONTROLS: Mapping[Kind, str] = {"checkpoint": "nested", "graph": "graph", "offload": "offload"}
Key = tuple[str, str]  # the implementation and the law of a row
_REDUCTIONS: set[subprocess.Popen[str]] = set()  # those that run now


def directory_of(results: Path) -> Path:
    """Where the scripts of a results file are: ``results/programs`` for the CPU's published ones, else beside the file.

    Those of published results of laws that take ranks are in ``results/programs-distributed``.
    """
    if results.parent.name == "results" and (found := re.match("conformance-|peers-|(?=distributed-)", results.stem)):
        return results.parent / f"programs-{results.stem[found.end() :]}".removesuffix("-cpu")
    return results.with_suffix("") if results.suffix else results.with_name(f"{results.name}-programs")


def files(rows: Iterable[Row]) -> dict[str, str]:
    """The scripts of faults among rows, by the names of their files."""
    return {name_of(row["law"], row["impl"]): row["program"] for row in standalone(rows)}


def name_of(law: str, implementation: str) -> str:
    """The file name of the script of a law and an implementation."""
    return re.sub(r"\W", "-", implementation) + f"-{law}.py"


def keeping_scripts(results: Path, header: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """The rows, with the scripts that a results file has for equal rows, whose fingerprints must be equal, too.

    Reducing them again would run the same programs on the same code.
    """
    try:
        earlier = results_file.read(results)
    except (OSError, ValueError):
        return list(rows)
    if _origin(earlier.header) != _origin(header):
        return list(rows)
    kept = {key_of(row): row for row in earlier.rows if file_of(results, row) is not None}
    return [{**row, "program": kept[key_of(row)]["program"]} if _is_equal(row, kept.get(key_of(row))) else row for row in rows]


def _origin(header: Mapping[str, Any]) -> tuple[Any, ...]:
    """What scripts may depend on besides the code; of Python's version, the third part is left out."""
    versions = {name: of.rpartition(".")[0] if name == "python" else of for name, of in header.get("versions", {}).items()}
    return versions, header.get("seed"), header.get("profile")


def _is_equal(row: Row, earlier: Row | None) -> bool:
    """Whether two runs of the same code say the same about a law and an implementation."""
    if earlier is None or "fingerprints" not in row:
        return False
    keys = (row.keys() | earlier.keys()) - {"program", "seconds", "measured"}  # the last tells when an earlier run judged it
    return all(row.get(key) == earlier.get(key) for key in keys)


def complete(
    results: Path, header: Mapping[str, Any], rows: Iterable[Row], *, published: bool, asked: Set[Key] | None = None
) -> list[Row]:
    """Reduce and write the scripts of a run, and its results, implementation by implementation, so that interrupts lose little.

    If they are ``published``, rows have the scripts' paths in place of their texts. ``asked`` is as for :func:`write`.
    """
    rows = list(rows)
    for name in dict.fromkeys(row["impl"] for row in rows):
        places = [place for place, row in enumerate(rows) if row["impl"] == name]
        for place, row in zip(places, write(results, [rows[place] for place in places], asked=asked), strict=True):
            rows[place] = row
        results_file.write(results, header, naming_files(results, rows) if published else rows)
    return rows


def write(results: Path, rows: Iterable[Row], *, asked: Set[Key] | None = None) -> list[Row]:
    """Write the scripts of a results file, and remove those of the same implementations that it no longer has.

    Those that are ``asked`` for are reduced before, by default those of all faults. Returns the rows with the written scripts.
    """
    directory = directory_of(results)
    rows = reduce_scripts(list(rows), asked=asked, directory=directory)
    wanted = files(rows)
    for path in scripts_about(directory, {row["impl"] for row in rows}):
        if path.name not in wanted:
            path.unlink()
    if wanted:
        directory.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (directory / name).write_bytes(text.encode())
    return rows


def naming_files(results: Path, rows: Iterable[Row]) -> list[Row]:
    """The rows; those whose script is a file have its path, from the results file, in place of its text."""
    return [_naming_file(results, row) for row in rows]


def _naming_file(results: Path, row: Row) -> Row:
    path = file_of(results, row)
    if path is None or path.read_bytes() != row["program"].encode():
        return row
    others = {key: value for key, value in row.items() if key != "program"}
    name = path.relative_to(results.parent).as_posix()
    return {**others, "script": name, "script_sha256": results_file.digest(row["program"])}


def file_of(results: Path, row: Row) -> Path | None:
    """The file with the script of a row of these results; None if there is none."""
    paths = [directory_of(results) / name for name in files([row])]
    return next((path for path in paths if path.is_file()), None)


def scripts_about(directory: Path, names: Iterable[str]) -> list[Path]:
    """The scripts in a directory that are about implementations of these names, as their docstrings say."""
    about = {path: subject(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.py"))}
    return [path for path, its in about.items() if its is not None and its.implementation in names]


def disagreements(results: Path, rows: Sequence[Row]) -> list[str]:
    """The scripts of a results file that are missing, differ from it, or that it does not have."""
    directory, wanted = directory_of(results), files(rows)
    found = {path.name: path.read_text(encoding="utf-8") for path in scripts_about(directory, {row["impl"] for row in rows})}
    return [str(directory / name) for name in sorted(wanted | found) if wanted.get(name) != found.get(name)]


def reducible(rows: Iterable[Row], asked: Set[Key] | None = None) -> list[Row]:
    """The rows whose scripts are reduced: those that are ``asked`` for, by default of all faults, but not of hangs."""
    return [row for row in standalone(rows) if (asked is None or key_of(row) in asked) and row["verdict"] != "hangs"]


def reduce_scripts(rows: Sequence[Row], *, asked: Set[Key] | None = None, directory: Path | None = None) -> list[Row]:
    """The rows with reduced scripts. Each takes some seconds, unless ``directory`` has the same script already.

    Where all are reduced, scripts of refusals are run, too; standard error names scripts that show nothing or stay long.
    """
    tasks = due(rows, asked=asked, directory=directory)
    tasks |= {key_of(row): Task(row["program"]) for row in rows if asked is None and _is_refusal(row)}
    reduced = _reduce(tasks)
    return [{**row, "program": reduced.get(key_of(row), row["program"])} for row in rows]


def due(rows: Iterable[Row], *, asked: Set[Key] | None = None, directory: Path | None) -> dict[Key, Task]:
    """The tasks of reducing scripts, without those of scripts that the directory has already."""
    tasks = {key_of(row): _task(row, directory) for row in reducible(rows, asked)}
    return {key: task for key, task in tasks.items() if task.script != task.earlier}


def key_of(row: Row) -> Key:
    """The implementation and the law of a row, which no other row of a run has."""
    return row["impl"], row["law"]


def end_reductions() -> None:
    """End the processes that reduce scripts, as an interrupt must."""
    for process in [*_REDUCTIONS]:
        process.terminate()


def _reduce(tasks: Mapping[Key, Task]) -> dict[Key, str]:
    """The reduced scripts of tasks, shared among one process for each core; a process that fails returns none."""
    command = [sys.executable, "-m", "conformance.reproducers.reduction"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    processes = min(os.cpu_count() or 1, len(tasks))
    parts = [list(tasks)[number::processes] for number in range(processes)]

    def run(part: list[Key]) -> dict[Key, str]:
        told = json.dumps([asdict(tasks[key]) for key in part])
        # In a group of its own, so that a terminal interrupts only this process, which then ends the other.
        with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True, env=environment, process_group=0) as process:
            _REDUCTIONS.add(process)
            output, _ = process.communicate(told)
            _REDUCTIONS.discard(process)
        if process.returncode == 0:
            return dict(zip(part, json.loads(output), strict=True))
        if process.returncode not in (ENDED, -signal.SIGTERM):
            ended = f"{' '.join(command)} ended with status {process.returncode}"
            sys.stderr.write(f"scripts that stay long: {len(part)}, because {ended}\n")  # the verdicts are kept
        return {}

    with ThreadPoolExecutor(max(processes, 1)) as pool:
        try:
            return {key: text for found in pool.map(run, parts) for key, text in found.items()}
        except KeyboardInterrupt:
            end_reductions()
            raise


def _is_refusal(row: Row) -> bool:
    return row["verdict"] == "refuses" and has_status(row.get("program", ""))


def _task(row: Row, directory: Path | None) -> Task:
    """The task of reducing a row's script, with the script that the directory has for it."""
    script = row["program"]
    path = None if directory is None else directory / next(iter(files([row])))
    earlier = "" if path is None or not path.exists() else path.read_text(encoding="utf-8")
    return Task(script, binding_in(script), control_of(row), earlier)


def control_of(row: Row) -> str:
    """The lines that bind the control of a row; "" if the control itself is judged, or does not keep the law."""
    kind: Kind = row.get("subject", "checkpoint")
    control = impls.get(CONTROLS[kind])
    own = row["impl"] == control.name or row["law"] in control.known
    return "" if own else binding(control, self_contained(row.get("options", ""), row["program"]))


def is_published(results: Path) -> bool:
    """Whether a results file of this path would be published, or its scripts would be among published ones."""
    directory = directory_of(results)
    return directory.parent == ROOT / "results" and re.match("programs(-|$)", directory.name) is not None


def resume(path: Path) -> None:
    """Reduce the scripts of results that a run has left long: of published ones all, of others those of unexpected verdicts.

    That takes the packages that were judged. Raises InvalidOption for a file that cannot be read.
    """
    path = path.resolve()
    try:
        found = results_file.read(path)
    except (OSError, ValueError) as error:
        raise InvalidOption(f"FILE: {error}") from error
    published = is_published(path)
    asked = None if published else {key_of(row) for row in found.rows if is_unexpected(row)}
    complete(path, found.header, found.rows, published=published, asked=asked)
