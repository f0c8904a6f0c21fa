"""The catalogue of laws for ``docs``: a line each, by what is judged and by family."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from conformance.judging.law import Law, all_laws
from conformance.mutants.mutant import UNBREAKABLE, mutants
from conformance.rows import for_readers
from impls import KINDS, Kind

HEADINGS: Mapping[Kind, str] = {
    "checkpoint": "Checkpointing",
    "graph": "Saved-tensor hooks and graph tools",
    "offload": "Offloaded models",
}


@dataclass(frozen=True)
class Column:
    """A column of the catalogue: its heading, and what a law has in it, given the number of mutants of each law."""

    heading: str
    cell: Callable[[Law, Mapping[str, int]], str]


COLUMNS = (
    Column("law", lambda law, _: f"`{law.name}`"),
    Column("what it states", lambda law, _: law.statement.replace("|", "\\|")),
    Column("tier", lambda law, _: _guide(law, "tier")),
    Column("if broken", lambda law, _: _guide(law, "consequence")),
    Column("needs", lambda law, _: ", ".join(_needs(law))),
    Column("mutants", lambda law, found: str(found[law.name]) if found[law.name] else f"none: {UNBREAKABLE[law.name]}"),
)


def markdown(laws: Iterable[Law] | None = None) -> str:
    """The catalogue of these laws, by default of all."""
    listed = sorted(all_laws().values() if laws is None else laws, key=lambda law: law.name)
    found = Counter(each.law for each in mutants())
    parts = [f"{len(listed)} laws, {sum(found[law.name] for law in listed)} mutants."]
    for kind in KINDS:
        of_kind = [law for law in listed if law.kind == kind]
        parts += [f"## {HEADINGS[kind]}"] if of_kind else []
        for family in sorted({law.family for law in of_kind}):
            parts += [f"### {family}", _table([law for law in of_kind if law.family == family], found)]
    return "\n\n".join(parts)


def _table(laws: Iterable[Law], found: Mapping[str, int]) -> str:
    lines = [[column.heading for column in COLUMNS], ["---"] * len(COLUMNS)]
    lines += [[column.cell(law, found) for column in COLUMNS] for law in laws]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _guide(law: Law, what: Literal["tier", "consequence"]) -> str:
    """The tier or consequence of a law; "" if it has none."""
    found = for_readers.of_law(law.name)
    return "" if found is None else getattr(found, what)


def _needs(law: Law) -> list[str]:
    """Capabilities, options, device types and packages that a law needs; functions among options are shown by name."""
    options = [f"`{name}={getattr(value, '__name__', repr(value))}`" for name, value in law.options.items()]
    return [*sorted(law.needs), *options, *(f"device {name}" for name in sorted(law.devices)), *law.packages]
