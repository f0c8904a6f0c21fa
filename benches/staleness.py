"""Which published results are older than the code, what measures each anew, and marks at them on the pages.

Such results were measured on older code, with changes that are not committed, at a commit that is not in the history of this
checkout, or under fewer laws than there are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches.budget import command as budget
from benches.compare import compiled_report as compiled_page
from benches.compare import report as compare_page
from benches.overhead import tables as overhead_page
from benches.papers import page as papers
from benches.ranks import report as ranks_page
from conformance.distributed.law import all_laws as all_ranked_laws
from conformance.judging.law import all_laws
from conformance.page import page
from conformance.provenance.measured_code import RANKS
from conformance.provenance.staleness import BEGIN, NO_FINGERPRINT, OLDER, Now, note
from conformance.reports import report
from conformance.rows import torch_releases
from conformance.rows.results_file import ROOT, Results, Row, read_all

COLUMNS = {"implementation": "impl", "declaration": "impl", "law": "law"}  # of a row, by the fingerprint that is about it
TABLES = (
    *("compare-*.json", "compiled-*.json", "ranks-*.json", "overhead-*.json", "budget.json"),
    *("layer-*.json", "offload-*.json", "zoo-*.json", "papers/*.json"),
)
MARK_ANEW = "nox -s published -- --mark"


@dataclass(frozen=True)
class Finding:
    """A published file, what is wrong with it, and the command that makes it anew."""

    path: Path
    faults: tuple[str, ...]
    command: str


def findings(root: Path, now: Now) -> list[Finding]:
    """One for each published file. Raises OSError, and ValueError for a file that cannot be read."""
    directory = root / "results"
    runs = [path for name in ("conformance", "peers", "distributed") for path in sorted(directory.glob(f"{name}-*.jsonl"))]
    tables = [path for pattern in TABLES for path in sorted(directory.glob(pattern))]
    return [*(_of_runs(path, now) for path in runs), *(_of_table(path, now) for path in tables)]


def _of_runs(path: Path, now: Now) -> Finding:
    runs = [now.of_results(one) for one in read_all(path)]
    session = path.name.partition("-")[0]
    return Finding(path, tuple(fault for run in runs for fault in _faults_of_run(run)), _judged_anew(session, runs[0]))


def _faults_of_run(run: Results) -> Iterator[str]:
    yield from _faults_of_header(run.header)
    older = [row for row in run.rows if OLDER in row]
    unknown = [row for row in older if NO_FINGERPRINT in row[OLDER]]
    if unknown:
        yield f"{len(unknown)} of {len(run.rows)} rows have no fingerprint, so they were measured before there were any"
    if len(older) > len(unknown):
        yield f"{len(older) - len(unknown)} of {len(run.rows)} rows were measured on older code:"
    for reason, column in COLUMNS.items():
        if names := {row[column] for row in older if reason in row[OLDER]}:
            yield f"{reason}: {_listed(names, [row[column] for row in run.rows])}"
    if missing := _not_judged(run.rows):
        yield f"not judged by every law that there is: {', '.join(missing)}"


def _not_judged(rows: Sequence[Row]) -> list[str]:
    """Laws about the kinds and devices of these rows by which some of their implementations were not judged."""
    there = {(row["law"], row["impl"], row["device"]) for row in rows}
    judged = {(row["impl"], row["device"], row.get("subject", "checkpoint")) for row in rows}
    laws = all_ranked_laws() if any(RANKS in row for row in rows) else all_laws()
    due = [(law, impl, device) for law in laws.values() for impl, device, kind in judged if law.kind == kind]
    lacking = [law.name for law, impl, device in due if (law.name, impl, device) not in there and _is_for(law, device)]
    return sorted(set(lacking))


def _is_for(law: Any, device: str) -> bool:
    """Whether a law is about devices of a type; how many of them a machine has is another question."""
    return not law.devices or device in law.devices


def _of_table(path: Path, now: Now) -> Finding:
    try:
        content = now.of_table(json.loads(path.read_text(encoding="utf-8")))
        return Finding(path, tuple(_faults_of_table(content)), _measured_anew(path, content))
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is no published result: {type(error).__name__}: {error}") from error


def _faults_of_table(content: Mapping[str, Any]) -> Iterator[str]:
    yield from _faults_of_header(content)
    if "fingerprints" not in content:
        yield f"it has no fingerprint, so it was measured before there were any: {_rows_of(content)}"
        return
    for kind, older in content[OLDER].items():
        for part in ("implementation", "workload"):
            if names := [name for name, reasons in older.items() if part in reasons]:
                told = f", whose {part} is older than the code" if kind != part else ", older than the code"
                yield f"{kind}: {_listed(names, content['fingerprints'][kind])}{told}"


def _rows_of(content: Mapping[str, Any]) -> str:
    """All that is in a table, by the names of its rows where they have some."""
    rows = content.get("rows", [])
    names = {kind: dict.fromkeys(row[kind] for row in rows if kind in row) for kind in ("contender", "workload")}
    names = {kind: those for kind, those in names.items() if those}
    return "; ".join(f"{kind} {', '.join(those)}" for kind, those in names.items()) or "all of it"


def _faults_of_header(header: Mapping[str, Any]) -> Iterator[str]:
    if told := note(header):
        yield told
    if header["suite"]["dirty"]:
        yield f"it was measured with changes that are not committed, and is not the work of {header['suite']['commit'][:10]}"


def _listed(names: Iterable[str], among: Iterable[str]) -> str:
    names, among = sorted(names), set(among)
    return f"all {len(names)}, {names[0]} to {names[-1]}" if len(names) > 1 and set(names) == among else ", ".join(names)


def _judged_anew(session: str, run: Results) -> str:
    version, device = torch_releases.release(run.header["versions"]["torch"]), run.rows[0]["device"] if run.rows else "cpu"
    options = [
        *(["--torch", version] if version != torch_releases.pinned() else []),
        *(["--device", device] if device != "cpu" else []),
    ]
    return " ".join(["nox", "-s", session, *(["--", *options] if options else [])])


def _measured_anew(path: Path, content: Mapping[str, Any]) -> str:
    name = path.stem.partition("-")[0]
    if path.parent.name == "papers":
        return f"nox -s reproduce -- {path.stem}"
    if name == "zoo":
        return "nox -s zoo -- --write"
    if name == "ranks":
        return f"python -m reprise compare --ranks {content['ranks']} --write"
    if name not in ("compare", "compiled"):
        about = [f"--{one} {content[one]}" for one in ("workload", "size") if name == "offload"]
        return " ".join(["python", "-m", "reprise", name, *about, "--write"])
    size, device = content["size"], content["device"]
    options = [
        *(["--compiled"] if name == "compiled" else []),
        *(["--size", size] if size != "S" else []),
        *(["--device", device] if device != "cpu" and size != "XL" else []),
    ]
    return " ".join(["nox", "-s", "compare", "--", *options, "--write"])


def mark(root: Path = ROOT) -> None:
    """Write generated sections and pages anew, with the marks that are due now, and no others.

    Raises OSError and ValueError when a part cannot be made.
    """
    directory, now = root / "results", Now()
    sections = compare_page.SECTION, compiled_page.SECTION, overhead_page.SECTION, budget.SECTION, *ranks_page.SECTIONS
    for section in sections:
        if (root / section.results).exists() and (root / section.section.page).exists():
            section.write(root, json.loads((root / section.results).read_text(encoding="utf-8")), now)
    if (directory / "papers" / "README.md").exists():
        (directory / "papers" / "README.md").write_text(papers.page(directory / "papers"), encoding="utf-8")
    if (directory / "conformance-cpu.jsonl").exists() and (root / report.MATRIX.page).exists():
        report.write(root)
    if (directory / "index.html").exists():
        page.write(root)


def _still_marked(root: Path) -> list[Path]:
    """The pages that have marks."""
    made = [root / name for name in ("README.md", "results/index.html", "results/papers/README.md")]
    pages = [*made, *sorted((root / "docs").glob("*.md"))]
    return [path for path in pages if path.exists() and BEGIN in path.read_text(encoding="utf-8")]


def check(root: Path = ROOT) -> tuple[list[str], str]:
    """What is wrong, a text for each file, and a line that says which published results are of this code.

    Raises OSError, and ValueError for what cannot be read.
    """
    found, marked = findings(root, Now(root)), _still_marked(root)
    wrong = [one for one in found if one.faults]
    fresh = ", ".join(str(one.path.relative_to(root)) for one in found if not one.faults) or "none"
    told = f"of this code are {len(found) - len(wrong)} of {len(found)} published results: {fresh}"
    if not wrong and marked:
        names = ", ".join(str(path.relative_to(root)) for path in marked)
        return [f"{names}: has marks of results that are no longer older than the code: {MARK_ANEW}"], told
    return [_told(one, root) for one in wrong], told


def _told(one: Finding, root: Path) -> str:
    lines = [f"{one.path.relative_to(root)}:", *one.faults, f"measured anew by: {one.command}"]
    return "\n  ".join(lines)
