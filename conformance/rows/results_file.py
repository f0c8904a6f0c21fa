"""The file that a conformance run writes: a header, a row per law and implementation and device, a footer.

One JSON object a line. The footer comes last and counts the rows, so a file that was cut short is noticed. A merged file
begins with a line that says how many runs it holds, followed by each run as its own file has it.
A row in memory has its script as ``program``. In a file it has either that or, if scripts are published beside the results,
``script``, the path of the script from the file. Reading replaces the path by the text, and refuses a script that was changed
since the run: ``script_sha256`` is its digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import platform
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

# Those of conformance.judging.verdicts, in the order of tables. Written out, since this module is read without torch.
VERDICTS = ("agrees", "refuses", "diverges", "crashes", "hangs")
FAULTS = ("diverges", "crashes", "hangs")  # verdicts that have a script which shows them
ROW_KEYS = ("law", "impl", "device", "expected", "verdict", "cases", "detail", "program")
HEADER_KEYS = ("versions", "machine", "seed", "profile", "suite", "date")
FORMAT = 1
ROOT = Path(__file__).resolve().parents[2]
NVIDIA = Path("/sys/module/nvidia/version")
UNKNOWN = "unknown"  # the commit where there is no git repository
KEPT = "kept"  # in a header, how many rows are from earlier runs on the same code

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """The results of one run, or of several ``runs`` that were merged."""

    path: Path
    header: Mapping[str, Any]
    rows: tuple[Row, ...]
    footer: Mapping[str, Any]
    runs: tuple[Results, ...] = ()


def is_unexpected(row: Row) -> bool:
    """Whether the verdict is not the declared one. A row says so itself if comparing the two verdicts is not enough."""
    return not row.get("as_declared", row["verdict"] == row["expected"])


def is_untested(row: Row) -> bool:
    """Whether too few cases say anything about the law. Such a row agrees, and its detail says why that proves nothing."""
    return row["verdict"] == "agrees" and bool(row["detail"])


def claim(row: Row) -> str:
    """What to call the expected verdict: "declared", or "claimed" if it is judged by another implementation's claims."""
    return "declared" if row.get("declared", True) else "claimed"


def kept(header: Mapping[str, Any]) -> str:
    """How many rows were measured by earlier runs on the same code, in words; "" if none were."""
    return f"{header[KEPT]} rows of earlier runs on the same code" if header.get(KEPT) else ""


def totals(rows: Iterable[Row]) -> dict[str, int]:
    """What the footer counts: rows, cases, rows by verdict, and unexpected verdicts."""
    rows = list(rows)
    verdicts = Counter(row["verdict"] for row in rows)
    unexpected = sum(map(is_unexpected, rows))
    cases = sum(row["cases"] for row in rows)
    return {"rows": len(rows), "cases": cases, **{name: verdicts[name] for name in VERDICTS}, "unexpected": unexpected}


def header(seed: int, profile: str, device: str, suite: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Versions, machine, seed, profile, commit of the suite and date.

    ``suite`` is the measured commit, as ``conformance.provenance.measured_code`` has it; by default the current one.
    For an accelerator, this initialises it to get its name, so call it after the laws have run.
    """
    versions = {name: metadata.version(name) for name in ("torch", "hypothesis", "pytest")}
    return {
        "kind": "header",
        "format": FORMAT,
        "versions": {"python": platform.python_version(), **versions},
        "machine": {
            "platform": platform.platform(),
            "processor": _processor(),
            "cpus": os.cpu_count(),
            "accelerator": _accelerator(device),
        },
        "seed": seed,
        "profile": profile,
        "suite": dict(suite) if suite else {"commit": commit(), "dirty": bool(changed())},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write(path: Path, header: Mapping[str, Any], rows: Iterable[Row]) -> None:
    """Write a results file in one step: a reader sees the old file or the whole new one.

    Raises ValueError, and leaves the old file, if what was written could not be read again.
    """
    _write(path, _lines(header, rows))


def write_all(path: Path, runs: Sequence[Results]) -> None:
    """Write several runs into one file, in one step, each as it is; raises as ``write`` does."""
    lines = [line for run in runs for line in _lines(run.header, run.rows)]
    _write(path, [{"kind": "merged", "format": FORMAT, "runs": len(runs)}, *lines])


def _lines(header: Mapping[str, Any], rows: Iterable[Row]) -> list[dict[str, Any]]:
    rows = list(rows)
    return [dict(header), *({"kind": "row", **row} for row in rows), {"kind": "footer", **totals(rows)}]


def _write(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=path.name, suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        read_all(temporary)
        temporary.chmod(0o644)  # mkstemp's is private to the user, a result is not
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read(path: Path) -> Results:
    """Read the results of one run.

    Raises FileNotFoundError. Raises ValueError, with file and reason, if the file is not UTF-8 or not JSON line by line, has no
    header or no footer, is of another format, goes on after the footer, has a row twice or a malformed one, names a script that
    cannot be read, has other numbers than its footer counts, or is a merge of several runs.
    """
    runs = read_all(path)
    if len(runs) != 1:
        raise ValueError(f"{path}: {len(runs)} runs are merged in it; one is wanted here")
    return runs[0]


def read_all(path: Path) -> tuple[Results, ...]:
    """Read the results of one run, or of those that are merged in a file; raises as ``read`` does."""
    lines = [_parse(path, number, text) for number, text in enumerate(text_of(path).splitlines(), 1)]
    if not lines or lines[0].get("kind") != "merged":
        return (_run(path, lines, 0),)
    _refuse_format(path, lines[0])
    ends = [number + 1 for number, line in enumerate(lines) if line.get("kind") == "footer"]
    bounds = sorted({1, *ends, len(lines)})
    runs = tuple(_run(path, lines[start:end], start) for start, end in itertools.pairwise(bounds))
    if lines[0].get("runs") != len(runs):
        raise ValueError(f"{path}: holds {len(runs)} runs, and {lines[0].get('runs')!r} by its first line")
    return runs


def text_of(path: Path) -> str:
    """The text of a file. Raises OSError; ValueError, which names the file, when it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: it is not UTF-8 text: {error.reason} at byte {error.start}") from error


def _run(path: Path, lines: Sequence[dict[str, Any]], before: int) -> Results:
    """The run on these lines, which come after ``before`` others in the file."""
    kinds = [line.get("kind") for line in lines]
    if not kinds or kinds[0] != "header":
        raise ValueError(
            f"{path}: the first line is not a header" if not before else f"{path}: line {before + 1} is not a header"
        )
    _refuse_format(path, lines[0])
    if missing := [key for key in HEADER_KEYS if key not in lines[0]]:
        raise ValueError(f"{path}: the header has no {', '.join(missing)}")
    if "footer" not in kinds:
        raise ValueError(f"{path}: there is no footer, so the run did not end")
    end = kinds.index("footer")
    if end != len(lines) - 1:
        raise ValueError(f"{path}: line {before + end + 2} comes after the footer")
    rows = tuple(_with_program(path, number, _without_kind(line)) for number, line in enumerate(lines[1:end], before + 2))
    for number, (kind, row) in enumerate(zip(kinds[1:end], rows, strict=True), before + 2):
        if problem := _problem(kind, row):
            raise ValueError(f"{path}: line {number} {problem}")
    _refuse_duplicates(path, rows)
    counted, footer = totals(rows), _without_kind(lines[end])
    if counted != footer:
        raise ValueError(f"{path}: the footer counts {footer}, the file holds {counted}")
    return Results(path, lines[0], rows, footer)


def _refuse_format(path: Path, line: Mapping[str, Any]) -> None:
    if (found := line.get("format", 1)) != FORMAT:
        raise ValueError(f"{path}: it is of format {found!r}; this suite reads format {FORMAT}")


def _parse(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: line {number} is not JSON: {error}") from error
    if not isinstance(line, dict):
        raise ValueError(f"{path}: line {number} is not a JSON object")
    return line


def _without_kind(line: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if key != "kind"}


def _with_program(path: Path, number: int, row: dict[str, Any]) -> dict[str, Any]:
    """A row with the text of its script, which published results have in a file of its own."""
    if "script" not in row:
        return row
    name, made = row.pop("script"), row.pop("script_sha256", None)
    if not isinstance(name, str):
        raise ValueError(f"{path}: line {number} has script={name!r}, not a value of type str")
    try:
        with (path.parent / name).open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: line {number} names script {name}, which cannot be read: {error}") from error
    if made not in (None, digest(text)):
        raise ValueError(f"{path}: line {number} names script {name}, which was edited since the run made it: restore it")
    return {**row, "program": text}


def digest(text: str) -> str:
    """The SHA-256 of a script, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _problem(kind: Any, row: Row) -> str | None:
    """What is wrong with a row, if anything is."""
    if kind != "row":
        return f"is of kind {kind!r}, not 'row'"
    for key in ROW_KEYS:
        wanted = int if key == "cases" else str
        if type(row.get(key)) is not wanted:
            return f"has {key}={row.get(key)!r}, not a value of type {wanted.__name__}"
    if unknown := {row["expected"], row["verdict"]} - set(VERDICTS):
        return f"has {min(unknown)!r} as a verdict; there are {', '.join(VERDICTS)}"
    return None


def _refuse_duplicates(path: Path, rows: Iterable[Row]) -> None:
    for (law, impl, device), count in Counter((row["law"], row["impl"], row["device"]) for row in rows).items():
        if count > 1:
            raise ValueError(f"{path}: {count} rows are about law {law}, implementation {impl}, device {device}")


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def _accelerator(device: str) -> str | None:
    import torch  # here, so that results can be read where torch is not installed

    if torch.device(device).type == "cpu":
        return None
    module = torch.get_device_module(device)
    named: Callable[[], str] | None = getattr(module, "get_device_name", None)
    name = named() if named else device
    return f"{name}, driver {_nvidia_driver()}" if torch.device(device).type == "cuda" else name


def _nvidia_driver() -> str:
    """The version of Nvidia's kernel module; "unknown" if the system does not say."""
    with contextlib.suppress(OSError):
        return NVIDIA.read_text(encoding="ascii").strip()
    asked = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return asked.splitlines()[0] if asked else "unknown"


def commit(root: Path = ROOT) -> str:
    """The commit of a checkout; UNKNOWN if it is no git repository."""
    return git("rev-parse", "HEAD", root=root) or UNKNOWN


def changed(root: Path = ROOT) -> tuple[str, ...]:
    """The files with uncommitted changes, including new files; ``results``, ``docs`` and README do not count."""
    lines = git("status", "--porcelain", "--", ".", ":!results", ":!README.md", ":!docs", root=root) or ""
    return tuple(line.split(maxsplit=1)[1] for line in lines.splitlines())


def git(*arguments: str, root: Path = ROOT) -> str | None:
    """What git prints about a checkout, None if it fails or is not there."""
    return _output("git", "-C", str(root), *arguments)


def _output(*command: str) -> str | None:
    """What a command prints, None if it fails or is not there."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
