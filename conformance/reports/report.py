"""The generated sections of README.md and ``docs`` that show verdicts and laws, and the limits of an implementation."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import impls
from conformance.provenance.staleness import OLDER, Now
from conformance.reports import choice, law_catalogue, matrix, ranking, verdict_counts
from conformance.reports.editions import editions, entries
from conformance.reports.generated_section import Section
from conformance.reports.merge import united
from conformance.reproducers import script_files
from conformance.rows import torch_releases
from conformance.rows.option_values import InvalidOption, did_you_mean
from conformance.rows.results_file import ROOT, Results, Row, claim, is_unexpected, is_untested, read_all

DOCS = Path("docs")
COUNTS = Section("counts", Path("README.md"))
MATRIX = Section("matrix", DOCS / "matrix.md")
ELSEWHERE = Section("elsewhere", DOCS / "devices-and-releases.md")
CHOICE = Section("choice", DOCS / "which-one.md")
LAWS = Section("laws", DOCS / "laws.md")
SCRIPT = Section("script", DOCS / "verdicts-and-limits.md")
RANKS = Section("ranked-verdicts", DOCS / "distributed-laws.md")
SECTIONS = COUNTS, MATRIX, ELSEWHERE, CHOICE, LAWS, SCRIPT, RANKS
NO_RANKS = "No verdicts are published yet: `nox -s distributed` makes them."
NOTHING = "No results of another device or another release of torch are published."
FEW, NEAREST = 24, 5  # up to so many names are listed; of more, only so many of the nearest
SHOWN = "torch-nonreentrant", "hooks_that_a_function_registers_on_its_argument"  # whose script is shown


def results(root: Path = ROOT) -> tuple[Results, ...]:
    """The results that the project publishes: the CPU's and, if there are any, those of other devices and of peers.

    Raises FileNotFoundError without the CPU's, ValueError for an incomplete file.
    """
    cpu = root / "results" / "conformance-cpu.jsonl"
    if not cpu.exists():
        raise FileNotFoundError(f"{cpu} does not exist; nox -s conformance writes it")
    others = sorted(set(cpu.parent.glob("conformance-*.jsonl")) - {cpu})
    peers = sorted(cpu.parent.glob("peers-*.jsonl"))
    return tuple(one for path in (cpu, *others, *peers) for one in united(read_all(path)))


def ranked(root: Path = ROOT) -> tuple[Results, ...]:
    """The published results of laws that take ranks, if there are any. Raises ValueError for an incomplete file."""
    paths = sorted((root / "results").glob("distributed-*.jsonl"))
    return tuple(one for path in paths for one in read_all(path))


def shown(rows: Iterable[Row]) -> str:
    """The script that docs show as an example, as Markdown. Raises ValueError if no row has it."""
    found = [row["program"] for row in rows if (row["impl"], row["law"]) == SHOWN]
    if not found:
        raise ValueError(f"no result shows that {SHOWN[0]} breaks {SHOWN[1]}; report.SHOWN names the script for {SCRIPT.page}")
    return f"<!-- fmt: off -->\n\n```python\n{found[0].strip()}\n```\n\n<!-- fmt: on -->"  # ruff formats Markdown, too


def limits(rows: Sequence[Row], name: str, law: str | None = None) -> str:
    """The laws that an implementation does not keep, as Python source: comments, each above its shrunk program.

    Raises InvalidOption for an implementation or a law of which there are no rows.
    """
    mine = _asked_for(rows, name, law)
    broken = sorted((row for row in mine if row["verdict"] != "agrees" or is_unexpected(row)), key=ranking.urgency)
    if not broken:
        return f"# {name}: agrees on {len(mine)} of {len(mine)} laws, {sum(row['cases'] for row in mine)} cases"
    return "\n\n\n".join(_limit(row) for row in broken)


def _asked_for(rows: Sequence[Row], name: str, law: str | None) -> list[Row]:
    mine = _chosen(rows, "impl", _called(rows, name), "--show")
    return mine if law is None else _chosen(mine, "law", law, "--law")


def _called(rows: Sequence[Row], name: str) -> str:
    """The name in rows for what the user calls ``name``: the same, or the own name of the implementation found by it."""
    there = {row["impl"] for row in rows}
    with suppress(ValueError):
        if name not in there and (reference := impls.installed().get(name, name)) in there:
            return reference
        return name if name in there or (called := impls.find(name).name) not in there else called
    return name


def _chosen(rows: Sequence[Row], key: str, value: str, option: str) -> list[Row]:
    chosen = [row for row in rows if row[key] == value]
    if not chosen:
        there = sorted({row[key] for row in rows})
        similar = [name for name in there if value in name] + difflib.get_close_matches(value, there, NEAREST, cutoff=0.0)
        nearest = list(dict.fromkeys(similar))[:NEAREST]
        told = f"there are {', '.join(there)}" if len(there) <= FEW else f"nearest of {len(there)}: {', '.join(nearest)}"
        others = "; --results FILE has those of another run" if key == "impl" else ""
        raise InvalidOption(f"{option}: no result has {key} {value!r}; {told}{others}{did_you_mean(value, there)}")
    return chosen


def _limit(row: Row) -> str:
    found = row["verdict"]
    if is_unexpected(row):  # even the declared verdict is, if too few cases prove anything; the detail says why
        if found == row["expected"]:
            found += f", as {claim(row)}, but not tested:"
        else:
            how = "but not tested" if is_untested(row) else "and that is unexpected"
            found += f", {how}: {claim(row)} is {row['expected']}"
    lines = [
        f"{row['impl']} on {row['device']}, law {row['law']}: {row.get('statement', '')}",
        found,
        *_declared(row),
        *([f"measured on older code: {', '.join(row[OLDER])}"] if OLDER in row else []),
        *row["detail"].splitlines(),
    ]
    return "\n".join([*(f"# {line}".rstrip() for line in lines), row["program"]]).rstrip()


def _declared(row: Row) -> list[str]:
    """Reason and source of a declared limit: those in the row or, for older rows, those declared today."""
    known = row["known"] if "known" in row else _known_now(row)
    return [] if known is None else [f"known: {known['reason']}", f"source: {known['source']}"]


def _known_now(row: Row) -> dict[str, str] | None:
    try:
        known = impls.get(row["impl"]).known.get(row["law"])
    except ValueError:  # none of ours, or a peer that is not installed
        return None
    return None if known is None else {"reason": known.reason, "source": known.source}


def show(name: str, law: str | None = None, path: Path | None = None, root: Path = ROOT) -> str:
    """What ``limits`` says by the published results, or by those of the run at ``path``.

    Raises InvalidOption for an implementation or law without results, and for a file that cannot be read.
    """
    try:
        found = results(root) if path is None else united(read_all(path))
    except (OSError, ValueError) as error:
        raise InvalidOption(f"--results: {error}") from error
    asked = {id(row) for row in _asked_for([row for one in found for row in one.rows], name, law)}
    some = [_only(one, asked) for one in found]  # to compare rows with the present code takes long
    return limits([row for one in map(Now().of_results, some) for row in one.rows], name, law)


def _only(found: Results, asked: Collection[int]) -> Results:
    """Results with only these rows."""
    runs = tuple(_only(run, asked) for run in found.runs)
    return replace(found, rows=tuple(row for row in found.rows if id(row) in asked), runs=runs)


def write(root: Path = ROOT) -> None:
    """Write the sections, with marks at what is older than the code."""
    found = tuple(map(Now().of_results, results(root)))
    ranks = tuple(map(Now().of_results, ranked(root)))
    for section, inside in list(_sections(root, found, ranks)):  # all are made before the first is written
        section.write(root, inside)


def check(root: Path = ROOT) -> list[str]:
    """What does not match the results: sections, apart from marks, and stored scripts."""
    found, ranks = results(root), ranked(root)
    stale = [section for section, inside in _sections(root, found, ranks) if not section.has(root, inside)]
    told = [f"section {one.name!r} of {root / one.page} is stale: python -m reprise report --write" for one in stale]
    files: dict[Path, list[Row]] = {}
    for one in (*found, *ranks):
        files.setdefault(one.path, []).extend(one.rows)  # merged runs may be about different laws
    return [*told, *(fault for path, rows in files.items() for fault in _programs(path, rows))]


def _programs(path: Path, rows: Sequence[Row]) -> list[str]:
    """A message if the stored scripts do not match a results file."""
    wrong = script_files.disagreements(path, rows)
    told = f"these scripts do not match {path}; a run of nox -s {path.name.partition('-')[0]} writes both:"
    return ["\n  ".join([told, *wrong])] if wrong else []


def _sections(root: Path, found: Sequence[Results], ranks: Sequence[Results]) -> Iterator[tuple[Section, str]]:
    """Each section with its text; the example script only if the page has a place for it."""
    here = [place for place, one in enumerate(found) if _is_here(one, found[:place])]
    elsewhere = [_elsewhere(one, found[:place]) for place, one in enumerate(found) if place not in here]
    yield COUNTS, verdict_counts.markdown(found[0])
    yield MATRIX, "\n\n".join(matrix.markdown(found[place]) for place in here)
    yield ELSEWHERE, "\n\n".join(elsewhere) or NOTHING
    yield CHOICE, choice.markdown(editions(entries(found))[0])
    yield LAWS, law_catalogue.markdown()
    yield RANKS, "\n\n".join(map(matrix.laws_markdown, ranks)) or NO_RANKS
    if SCRIPT.begin in (root / SCRIPT.page).read_text(encoding="utf-8"):
        yield SCRIPT, shown(row for one in found for row in one.rows)


def _is_here(one: Results, before: Sequence[Results]) -> bool:
    """Whether these are results of the CPU with the pinned release of torch."""
    return torch_releases.counterpart(one, before) is None and all(row["device"] == "cpu" for row in one.rows)


def _elsewhere(one: Results, before: Sequence[Results]) -> str:
    """A matrix, or for another release of torch what differs from the pinned one."""
    other = torch_releases.counterpart(one, before)
    return matrix.markdown(one) if other is None else matrix.differences(one, other)
