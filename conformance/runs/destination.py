"""Where the results of a run go, and what ``--results`` may name: an existing file is overwritten only if it holds results."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from pathlib import Path

from conformance.reproducers.script_files import directory_of, is_published
from conformance.reproducers.script_syntax import subject
from conformance.rows.option_values import writable
from conformance.rows.results_file import ROOT, read_all
from conformance.rows.torch_releases import pinned, release

ACCEPTED = "accepted is the path of a new file, or of the results of an earlier run, which are replaced"
LONGEST = 100  # characters in the name of a file, before a part such as -some


def published_path(device: str, *, peers: bool, torch: str | None = None) -> Path:
    """The file of a complete run in which all verdicts are as declared; the matrix is made from it.

    ``torch`` is the version of the run: another release than the pinned one has a file of its own.
    """
    other = "" if torch is None or release(torch) == pinned() else f"-torch-{release(torch)}"
    return ROOT / "results" / f"{'peers' if peers else 'conformance'}-{device}{other}.jsonl"


def path_of_run(profile: str, device: str, chosen: Iterable[str], *, peers: bool, some: bool, like: str | None = None) -> Path:
    """The file of any other run. Runs of ``some`` laws, and runs by other claims, have files of their own."""
    slugs = [re.sub(r"\W+", "-", one) for one in dict.fromkeys(chosen)]
    name = "-".join([profile, device, *(["peers"] if peers else []), *slugs])[:LONGEST]
    return ROOT / "results" / "runs" / f"{name}{f'-like-{like}' if like else ''}{'-some' if some else ''}.jsonl"


def results_path(text: str) -> Path:
    """The path of a file that a run may write, with its scripts beside it. Raises ValueError for any other path."""
    path = Path(text)
    try:
        fault = _fault(path)
    except OSError as error:
        fault = f"which cannot be written: {error}"
    if fault:
        raise ValueError(f"it is {text}, {fault}; {ACCEPTED}")
    return path


def _fault(path: Path) -> str:
    """What is wrong with a path for results; "" if nothing is. Raises OSError where nothing can be written."""
    if any(map(is_published, {path.parent.resolve() / path.name, path.resolve()})):
        return "where published results and their scripts are, which only a complete run as declared writes, without --results"
    if fault := _overwrite_fault(path):
        return fault
    _try_to_write(path)
    scripts = directory_of(path)
    if scripts.exists() and not scripts.is_dir():
        return f"and its scripts would go to {scripts}, which is not a directory"
    others = [one.name for one in sorted(scripts.glob("*.py")) if not _is_script(one)]
    return f"and its scripts would go to {scripts}, where {others[0]} is not a script of a run" if others else ""


def _overwrite_fault(path: Path) -> str:
    """Why a path may not be overwritten; "" if only results would be lost."""
    if path.is_dir():
        return "a directory"
    if path.exists():
        if not path.is_file():
            return "which is not a file"
        try:
            if path.stat().st_size:  # an empty file, as mktemp makes it, loses nothing
                read_all(path)
        except ValueError as error:
            return f"which exists and holds no results of this suite ({error})"
    return ""


def merged_path(text: str) -> str:
    """Where merged results go: a new file, one with results, or ``-``. Raises ValueError for any other path."""
    try:
        fault = "" if writable(text) == "-" else _overwrite_fault(Path(text))
        if any(map(is_published, {Path(text).resolve(), Path(text).parent.resolve() / Path(text).name})):
            fault = "where published results and their scripts are, which only a complete run as declared writes"
    except OSError as error:
        fault = f"which cannot be read: {error}"
    if fault:
        raise ValueError(f"it is {text}, {fault}; accepted is the path of a new file, or of results, or -")
    return text


def declared_in(stem: str, chosen: Iterable[str], name: str) -> str:
    """The name of the file for a declaration. The results' name may end with all chosen names, which are left out of it."""
    slugs = [re.sub(r"\W+", "_", one) for one in (stem, *chosen, name)]
    kept = slugs[0].removesuffix("_" + "_".join(slugs[1:-1]))
    return f"{kept}_{slugs[-1]}_declared.py"


def _is_script(path: Path) -> bool:
    return subject(path.read_text(encoding="utf-8", errors="replace")) is not None


def _try_to_write(path: Path) -> None:
    """Raise OSError if the file cannot be made. A missing directory is not made: the nearest existing one above is tried."""
    above = next(one for one in path.absolute().parents if one.exists())
    if not above.is_dir():
        raise NotADirectoryError(f"{above} is not a directory")
    for directory in {above, directory_of(path)} if directory_of(path).is_dir() else {above}:
        with tempfile.NamedTemporaryFile(prefix=path.name, suffix=".tmp", dir=directory):
            pass
