"""The scripts that show faults, as files: ``IMPLEMENTATION-LAW.py`` for each divergence, crash and leak.

They are in a directory that belongs to a results file: ``results/programs`` for the CPU's published one. There they are
the only copy: published rows name them. Results of other runs have the texts in their rows, too, and can be moved alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import impls
from conformance.reproducers.replay import standalone
from conformance.reproducers.script import binding, binding_in, self_contained
from conformance.reproducers.script_syntax import has_status, subject
from conformance.rows import results_file
from conformance.rows.option_values import InvalidOption
from conformance.rows.results_file import ROOT, Row, is_unexpected
from impls import Kind

# Who keeps the laws of a kind, and shows that a smaller program is none that goes wrong by itself.
CONTROLS: Mapping[Kind, str] = {"checkpoint": "nested", "graph": "graph", "offload": "offload"}


def directory_of(results: Path) -> Path:
    """Where the scripts of a results file are: ``results/programs`` for the CPU's published ones, else beside the file."""
    if results.parent.name == "results" and results.stem.startswith(("conformance-", "peers-")):
        return results.parent / re.sub("^(conformance|peers)", "programs", results.stem).removesuffix("-cpu")
    return results.with_suffix("") if results.suffix else results.with_name(f"{results.name}-programs")


def files(rows: Iterable[Row]) -> dict[str, str]:
    """The files that rows call for, by name: the scripts of divergences, crashes and leaks."""
    return {re.sub(r"\W", "-", row["impl"]) + f"-{row['law']}.py": row["program"] for row in standalone(rows)}


def complete(results: Path, header: Mapping[str, Any], rows: Iterable[Row], *, published: bool) -> list[Row]:
    """Make the scripts of a run and write them and the run's results, after each implementation: an interruption loses few.

    Where they are ``published``, all are made as small as can be, and rows name them instead of having their texts.
    """
    rows = list(rows)
    for name in dict.fromkeys(row["impl"] for row in rows):
        places = [place for place, row in enumerate(rows) if row["impl"] == name]
        for place, row in zip(places, write(results, [rows[place] for place in places], reduce_all=published), strict=True):
            rows[place] = row
        results_file.write(results, header, naming_files(results, rows) if published else rows)
    return rows


def write(results: Path, rows: Iterable[Row], *, reduce_all: bool) -> list[Row]:
    """Write the scripts of a results file; those that are gone, of the implementations in the rows, are removed.

    The rows come back with scripts that are as small as can be: of verdicts that were not expected, or of all faults.
    """
    directory = directory_of(results)
    rows = with_smaller_programs(list(rows), all_of_them=reduce_all, directory=directory)
    wanted = files(rows)
    for path in there(directory, {row["impl"] for row in rows}):
        if path.name not in wanted:
            path.unlink()
    if wanted:
        directory.mkdir(parents=True, exist_ok=True)
    for name, text in wanted.items():
        (directory / name).write_bytes(text.encode())
    return rows


def naming_files(results: Path, rows: Iterable[Row]) -> list[Row]:
    """The rows, those whose script is a file by now with the path of that, seen from the results, in place of the text."""
    return [_naming_file(results, row) for row in rows]


def _naming_file(results: Path, row: Row) -> Row:
    path = file_of(results, row)
    if path is None or path.read_bytes() != row["program"].encode():
        return row
    others = {key: value for key, value in row.items() if key != "program"}
    return {**others, "script": path.relative_to(results.parent).as_posix()}


def file_of(results: Path, row: Row) -> Path | None:
    """The file with the script of a row of these results, None if there is none."""
    paths = [directory_of(results) / name for name in files([row])]
    return next((path for path in paths if path.is_file()), None)


def there(directory: Path, names: Iterable[str]) -> list[Path]:
    """The scripts in a directory that are about implementations of these names, as their first lines say."""
    about = {path: subject(path.read_text(encoding="utf-8")) for path in sorted(directory.glob("*.py"))}
    return [path for path, its in about.items() if its is not None and its.implementation in names]


def disagreements(results: Path, rows: Sequence[Row]) -> list[str]:
    """The files that are missing, changed, or no longer due where the scripts of a results file are."""
    directory, wanted = directory_of(results), files(rows)
    found = {path.name: path.read_text(encoding="utf-8") for path in there(directory, {row["impl"] for row in rows})}
    return [str(directory / name) for name in sorted(wanted | found) if wanted.get(name) != found.get(name)]


def to_be_reduced(rows: Iterable[Row], *, all_of_them: bool) -> list[Row]:
    """The rows whose scripts are made small: of verdicts that were not expected, or of all faults, but for those that hang."""
    return [row for row in standalone(rows) if (all_of_them or is_unexpected(row)) and row["verdict"] != "hangs"]


def with_smaller_programs(rows: Sequence[Row], *, all_of_them: bool, directory: Path | None = None) -> list[Row]:
    """The rows, with scripts that are as small as can be: some seconds each, but for those that ``directory`` has already.

    Where all are made small, those of refusals are run: standard error names those that show nothing, or that stay long.
    """
    chosen = to_be_reduced(rows, all_of_them=all_of_them)
    chosen += [row for row in rows if all_of_them and _is_refusal(row)]
    processes = min(os.cpu_count() or 1, len(chosen))
    smaller: dict[tuple[str, str], str] = {}
    for part, texts in _reduced([chosen[number::processes] for number in range(processes)], directory):
        smaller |= {(row["impl"], row["law"]): text for row, text in zip(part, texts, strict=True)}
    return [{**row, "program": smaller.get((row["impl"], row["law"]), row["program"])} for row in rows]


def _reduced(parts: Sequence[list[Row]], directory: Path | None) -> list[tuple[list[Row], list[str]]]:
    """The scripts of rows, made small by a process for each part."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    command = [sys.executable, "-m", "conformance.reproducers.reduction"]
    pipe = subprocess.PIPE
    running = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) for _ in parts]
    for process, part in zip(running, parts, strict=True):
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as stdin:  # of one that has failed its status tells
            stdin.write(json.dumps([_task(row, directory) for row in part]))
    found = []
    for process, part in zip(running, parts, strict=True):
        assert process.stdout is not None
        with process.stdout as stdout:
            text = stdout.read()
        if process.wait() == 0:
            found.append((part, json.loads(text)))
        else:  # what a run has found is not lost for it
            sys.stderr.write(f"{len(part)} scripts stay long: {' '.join(command)} ended with status {process.returncode}\n")
    return found


def _is_refusal(row: Row) -> bool:
    return row["verdict"] == "refuses" and has_status(row.get("program", ""))


def _task(row: Row, directory: Path | None) -> tuple[str, str, str, str]:
    """What a reduction takes of a row: the script, the lines that bind what it judges, the control's, and an earlier script."""
    program = row["program"]
    return (
        (program, "", "", "") if _is_refusal(row) else (program, binding_in(program), _control(row), _earlier(row, directory))
    )


def _earlier(row: Row, directory: Path | None) -> str:
    """The script that is there for a row already."""
    path = None if directory is None else directory / next(iter(files([row])))
    return "" if path is None or not path.exists() else path.read_text(encoding="utf-8")


def _control(row: Row) -> str:
    """The lines that bind the control of a row; none where the control itself is at fault, or does not keep the law."""
    kind: Kind = row.get("subject", "checkpoint")
    control = impls.get(CONTROLS[kind])
    own = row["impl"] == control.name or row["law"] in control.known
    return "" if own else binding(control, self_contained(row.get("options", ""), row["program"]))


def is_published(results: Path) -> bool:
    """Whether results of this path, or their scripts, would be among the published ones of the project."""
    directory = directory_of(results)
    return directory.parent == ROOT / "results" and re.match("programs(-|$)", directory.name) is not None


def resume(path: Path) -> None:
    """Go on where a run was interrupted while it made the scripts of these published results as small as can be.

    Those of peers need the packages that were judged. Raises InvalidOption for another file than one of published results.
    """
    path = path.resolve()
    if not is_published(path):
        raise InvalidOption(f"FILE is {path}; accepted are published results: those in {ROOT / 'results'}")
    try:
        found = results_file.read(path)
    except (OSError, ValueError) as error:
        raise InvalidOption(f"FILE: {error}") from error
    complete(path, found.header, found.rows, published=True)
