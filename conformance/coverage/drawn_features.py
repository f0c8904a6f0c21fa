"""Counts the features of the programs that the explorer draws for each law. Nothing is run or judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

import impls
from conformance.judging.explorer import Explorer
from conformance.judging.law import Law, Profile, all_laws
from conformance.laws.test_gradients import ALONE
from conformance.programs.generator.combinations import are_possible
from conformance.programs.generator.features import FEATURES
from conformance.programs.program import Program
from conformance.programs.sums import Comparable
from impls import Kind

Pair = tuple[str, str]  # in the order of the alphabet
CLAIMS: Mapping[Kind, str] = {"checkpoint": "nested", "graph": "graph", "offload": "offload"}  # by which programs are drawn
COMBINES: Mapping[str, frozenset[str]] = {"all_claimed_features_combined": frozenset(ALONE)}  # laws that are about all pairs


@dataclass(frozen=True)
class Drawn:
    """The programs of one law that the generator drew: how many have each feature, and each pair of features."""

    law: str
    programs: int
    features: Counter[str]
    pairs: Counter[Pair]


def drawn(profile: Profile, seed: int, laws: Iterable[Law] | None = None) -> list[Drawn]:
    """What is drawn for these laws, by default for all, sorted by name; laws that the generator draws nothing for are left out.

    Laws that can enumerate their programs are left out, too: these are samples of a database.
    """
    explorer = Explorer("cpu", profile, seed)
    chosen = sorted(all_laws().values() if laws is None else laws, key=lambda law: law.name)
    found = (counted(law.name, _generated(explorer, law)) for law in chosen if law.every is None)
    return [one for one in found if one.programs]


def _generated(explorer: Explorer, law: Law) -> list[Program]:
    """The distinct programs that the explorer draws for a law, and of these the generator's."""
    found: dict[str, Program] = {}

    def use(one: Comparable) -> None:
        if program := generated(one):
            found[one.source] = program

    explorer.draw(law, impls.get(CLAIMS[law.kind]), use)
    return list(found.values())


def generated(one: Comparable) -> Program | None:
    """The generator's program that this is, or is made of; None if it was written by hand."""
    if isinstance(one, Program):
        return one
    return next((part for part in vars(one).values() if isinstance(part, Program)), None)


def counted(law: str, programs: Iterable[Program]) -> Drawn:
    """The counts of some programs of a law."""
    made = [sorted(program.features) for program in programs]
    pairs = Counter(pair for features in made for pair in combinations(features, 2))
    return Drawn(law, len(made), Counter(feature for features in made for feature in features), pairs)


def total(found: Iterable[Drawn]) -> Drawn:
    """The counts of all these laws together."""
    there = list(found)
    features = sum((one.features for one in there), Counter[str]())
    return Drawn("all", sum(one.programs for one in there), features, sum((one.pairs for one in there), Counter[Pair]()))


def possible(features: Iterable[str] = FEATURES) -> Iterator[Pair]:
    """The pairs of these features that one program can have."""
    return (pair for pair in combinations(sorted(features), 2) if are_possible(*pair))


def holes(one: Drawn, features: Iterable[str] = FEATURES) -> list[Pair]:
    """The pairs of these features that a program can have and that none has."""
    return [pair for pair in possible(features) if not one.pairs[pair]]
