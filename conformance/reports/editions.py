"""What the page of results shows: verdicts, in tables of laws by family × implementations, by device and version of torch."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, TypeVar

import impls
from conformance.provenance.measured_code import RANKS
from conformance.provenance.staleness import OLDER, note
from conformance.reports.ranking import effect, guide
from conformance.reproducers import script_files
from conformance.reproducers.script_syntax import OURS, imports
from conformance.rows.results_file import Results, Row, is_unexpected, kept

T = TypeVar("T", bound=Hashable)
THIS_PROJECT = "this project"
RANKED = "ranks"  # the kind of table with verdicts on laws that take ranks
KINDS: Mapping[str, str] = {
    "checkpoint": "Checkpointing",
    "graph": "Graph hooks",
    "offload": "Offloaded models",
    RANKED: "Checkpointing under several ranks",
}


@dataclass(frozen=True)
class Entry:
    """A verdict: its place among all that are shown, its row, the ``source``-th results, and the run that gave it."""

    number: int
    row: Row
    source: int
    results: Results
    run: Results

    @property
    def torch(self) -> str:
        return self.results.header["versions"]["torch"]

    @property
    def kind(self) -> str:
        return RANKED if RANKS in self.row else self.row.get("subject", "checkpoint")

    @property
    def family(self) -> str:
        return self.row.get("family", "")

    @property
    def unexpected(self) -> bool:
        return is_unexpected(self.row)

    @property
    def older(self) -> bool:
        return OLDER in self.row

    @property
    def counts(self) -> Mapping[str, int]:
        return self.row.get("counts") or {self.row["verdict"]: self.row["cases"]}

    @property
    def told(self) -> str:
        """How many cases had the verdict: ``4/32``, or ``32`` for all."""
        count, cases = self.counts.get(self.row["verdict"], 0), self.row["cases"]
        return str(cases) if count == cases else f"{count}/{cases}"

    @property
    def judged_by(self) -> str:
        """The command that judges this implementation again, by all laws that ``-k`` selects."""
        if RANKS in self.row:
            head, ranks = self.run.header, str(self.row[RANKS])
            chosen = ["--ranks", ranks, "--impl", self.row["impl"], "--profile", head["profile"], "--seed", str(head["seed"])]
            return shlex.join(["nox", "-s", "distributed", "--", *chosen])
        session = "peers" if self.row["impl"] in impls.PEERS else "conformance"
        options = {
            "torch": self.torch.partition("+")[0],  # an index knows the version without the build, such as +cpu
            "impl": self.row["impl"],
            "device": self.row["device"],
            "profile": self.run.header["profile"],
            "seed": str(self.run.header["seed"]),
        }
        chosen = [part for name, value in options.items() for part in (f"--{name}", value)]
        return shlex.join(["nox", "-s", session, "--", *chosen])

    @property
    def command(self) -> str:
        """The command that judges this implementation by this law again."""
        if RANKS in self.row:
            return f"{self.judged_by} -k {self.row['law']}"
        chosen = f"test_{self.row['law']}[{self.row['impl']}]"
        return f"{self.judged_by} -k {shlex.quote(chosen)}"

    @property
    def script_file(self) -> str:
        """The path of the script from the results file; "" if there is no such file."""
        path = script_files.file_of(self.results.path, self.row)
        return "" if path is None else path.relative_to(self.results.path.parent).as_posix()

    @property
    def detail(self) -> str:
        """What was seen. If the script is that of the same verdict in other results, these are named, too."""
        seen, where = self.row["detail"], self.row.get("program_in")
        return f"{seen}\nIts script is that of the same verdict in {where}.".strip() if where else seen

    @property
    def takes(self) -> str:
        """What its script needs to run; THIS_PROJECT if that is a clone of this project."""
        peer, name = impls.PEERS.get(self.row["impl"]), self.row["impl"]
        if imports(self.row["program"], OURS):
            return THIS_PROJECT
        if peer and peer.distribution:
            return f"torch and {peer.distribution}"
        return "torch alone" if peer or name in impls.names() else "torch and what it imports"

    @property
    def known(self) -> Mapping[str, str] | None:
        """Reason and source of a declared limit; for older rows, which lack them, those that are declared now."""
        if "known" in self.row or self.row["impl"] not in impls.names():
            return self.row.get("known")
        known = impls.get(self.row["impl"]).known.get(self.row["law"])
        return None if known is None else {"reason": known.reason, "source": known.source}

    def record(self) -> list[dict[str, Any]]:
        """What the panel shows besides the law's statement in the table, split into parts that several verdicts share."""
        row = self.row
        return [
            {"law": row["law"], "family": self.family, **_for_readers(row)},
            {
                "impl": row["impl"],
                "device": row["device"],
                "ranks": self.row.get(RANKS, 0),  # of a law that takes them
                "torch": self.torch,
                "judged_by": self.judged_by,
            },
            {"expected": row["expected"], "verdict": row["verdict"], "unexpected": self.unexpected, "effect": effect(row)},
            {"cases": row["cases"], "counts": self.counts},
            {
                "options": row.get("options", ""),
                "program": bool(row["program"]),
                "takes": self.takes,
                "folder": self.script_file.rpartition("/")[0],  # the name of the file is that of implementation and law
            },
            {"known": self.known},
            {"detail": self.detail},
        ]


def _for_readers(row: Row) -> dict[str, str]:
    """What the law of a row means to readers, if it is there."""
    found = guide(row["law"])
    return {"tier": found.tier, "consequence": found.consequence, "words": ", ".join(found.words)} if found else {}


def interned(records: Iterable[Sequence[Mapping[str, Any]]]) -> list[tuple[list[Any], list[int]]]:
    """The records by part, each value once: the distinct values, and for each record the place of its own among them."""
    found: list[tuple[list[Any], list[int]]] = []
    for part in zip(*records, strict=True):
        texts = [json.dumps(value) for value in part]  # which can be compared, as mappings cannot
        places = {text: place for place, text in enumerate(distinct(texts))}
        found.append(([json.loads(text) for text in places], [places[text] for text in texts]))
    return found


@dataclass(frozen=True)
class Column:
    """An implementation in a table. ``note`` distinguishes it from another column of the same name."""

    name: str
    note: str
    entries: tuple[Entry, ...]

    @property
    def cases(self) -> int:
        return sum(entry.row["cases"] for entry in self.entries)


@dataclass(frozen=True)
class Line:
    """A law, and what each column has about it: nothing, a verdict, or several that contradict each other."""

    name: str
    statement: str
    cells: tuple[tuple[Entry, ...], ...]


@dataclass(frozen=True)
class Family:
    """The laws of a family, and for each column the laws by verdict."""

    name: str
    lines: tuple[Line, ...]

    @property
    def tallies(self) -> list[Counter[str]]:
        columns = zip(*(line.cells for line in self.lines), strict=True)
        return [Counter(entry.row["verdict"] for cell in column for entry in cell) for column in columns]

    @property
    def older(self) -> list[int]:
        """For each column how many of its verdicts were measured on older code."""
        columns = zip(*(line.cells for line in self.lines), strict=True)
        return [sum(entry.older for cell in column for entry in cell) for column in columns]


@dataclass(frozen=True)
class Table:
    """Laws by family × implementations of one kind."""

    kind: str
    columns: tuple[Column, ...]

    @property
    def title(self) -> str:
        return KINDS.get(self.kind, self.kind)

    @property
    def families(self) -> list[Family]:
        cells: dict[str, dict[str, dict[int, list[Entry]]]] = {}
        for place, column in enumerate(self.columns):
            for entry in column.entries:
                laws = cells.setdefault(entry.family, {})
                laws.setdefault(entry.row["law"], {}).setdefault(place, []).append(entry)
        return [
            Family(name, tuple(self._line(law, there) for law, there in laws.items())) for name, laws in sorted(cells.items())
        ]

    def _line(self, law: str, cells: Mapping[int, Sequence[Entry]]) -> Line:
        statement = next(iter(cells.values()))[0].row.get("statement", "")
        return Line(law, statement, tuple(tuple(cells.get(place, ())) for place in range(len(self.columns))))


@dataclass(frozen=True)
class Edition:
    """Everything that was measured on one device with one version of torch."""

    device: str
    torch: str
    entries: tuple[Entry, ...]

    @property
    def measured(self) -> list[tuple[str, str, str]]:
        """For each run: its file; on what, with what and when it was made; and what is wrong with its commit."""
        sources = {entry.source: entry.results for entry in self.entries}.values()
        runs = [(one.path.name, run) for one in sources for run in one.runs or (one,)]
        here = [(name, run.header) for name, run in runs if any(r["device"] == self.device for r in run.rows)]
        return [(name, measured_on(header), note(header)) for name, header in here]

    @cached_property
    def tables(self) -> list[Table]:
        kinds = distinct(entry.kind for entry in self.entries)
        return [Table(kind, _columns([entry for entry in self.entries if entry.kind == kind])) for kind in kinds]


def entries(found: Iterable[Results]) -> list[Entry]:
    """Every verdict of the results. Raises ValueError if there is none."""
    shown: list[Entry] = []
    for source, one in enumerate(found):
        gave = {_about(row): run for run in reversed(one.runs) for row in run.rows}
        shown += [Entry(len(shown) + place, row, source, one, gave.get(_about(row), one)) for place, row in enumerate(one.rows)]
    if not shown:
        raise ValueError("the results hold no verdicts, so there is no page to make of them")
    return shown


def editions(shown: Sequence[Entry]) -> list[Edition]:
    """The verdicts by device and version of torch, in the order in which these first come."""
    keys = distinct((entry.row["device"], entry.torch) for entry in shown)
    return [Edition(*key, tuple(e for e in shown if (e.row["device"], e.torch) == key)) for key in keys]


def measured_on(head: Mapping[str, Any]) -> str:
    """Machine, versions, commit and date of a run; profile and seed if it drew programs."""
    machine, suite = head["machine"], head["suite"]
    where = [machine["accelerator"], machine["processor"], f"{machine['cpus']} CPUs", machine["platform"]]
    versions = [f"{name} {version}" for name, version in head["versions"].items()]
    commit = f"suite at {suite['commit'][:10]}" + (" with uncommitted changes" if suite["dirty"] else "")
    drawn = [f"{name} {head[name]}" for name in ("profile", "seed") if name in head]
    made = datetime.fromisoformat(head["date"]).astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return " · ".join(part for part in [*where, *versions, *drawn, commit, made, kept(head)] if part)


def distinct(values: Iterable[T]) -> list[T]:
    """The values in the order in which they first come."""
    return list(dict.fromkeys(values))


def _about(row: Row) -> tuple[str, ...]:
    return tuple(row[key] for key in ("law", "impl", "device", "verdict", "program"))


def _columns(shown: Iterable[Entry]) -> tuple[Column, ...]:
    columns: dict[tuple[str, int], list[Entry]] = {}
    for entry in shown:
        columns.setdefault((entry.row["impl"], entry.source), []).append(entry)
    times = Counter(name for name, _ in columns)
    return tuple(
        Column(name, _told_apart(members[0]) if times[name] > 1 else "", tuple(members))
        for (name, _), members in columns.items()
    )


def _told_apart(entry: Entry) -> str:
    head = entry.results.header
    return f"python {head['versions']['python']}, suite {head['suite']['commit'][:10]}"
