"""Every law that takes ranks catches the mutant that it must catch, with the verdict of its fault; nested itself agrees."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import impls
from conformance.distributed import mutants
from conformance.distributed.explorer import RankedExplorer
from conformance.distributed.law import PROFILES, all_laws
from conformance.distributed.world import Worlds
from conformance.judging.verdicts import Verdict
from conformance.mutants.mutant import Mutant
from impls.distributed_limits import declared

DEFAULT = PROFILES["default"]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with Worlds(2) as made:
        yield made


def made(law: str) -> Mutant:
    """The mutant that a law must catch."""
    found: Mutant = getattr(mutants, mutants.catches(law))
    return found


@pytest.mark.parametrize(("law", "mutant"), [(law, made(law)) for law in mutants.names()], ids=mutants.names())
def test_the_law_catches_its_mutant(law: str, mutant: Mutant, worlds: Worlds) -> None:
    found_as = {mutant.implementation.name: f"{mutants.__name__}:{mutants.catches(law)}.implementation"}
    explorer, nested = RankedExplorer(worlds, DEFAULT, 0, found_as), impls.get("nested")
    assert law not in declared(nested)
    its = all_laws()[law]
    for program in explorer.programs(its, nested):
        assert explorer.judge(its, program, nested).verdict is Verdict.AGREES
        if (found := explorer.judge(its, program, mutant.implementation)).verdict is not Verdict.AGREES:
            break
    assert found.verdict is mutants.verdict(law)
    if (due := mutants.cause(law)) is not None:
        assert found.cause == due


@pytest.mark.parametrize("law", sorted(mutants.BROKEN_BY_NESTED))
def test_a_law_that_nested_does_not_keep_is_kept_if_nothing_is_recomputed(law: str, worlds: Worlds) -> None:
    right, nested, its = mutants.recomputes_nothing.implementation, impls.get("nested"), all_laws()[law]
    explorer = RankedExplorer(worlds, DEFAULT, 0, {right.name: f"{mutants.__name__}:recomputes_nothing.implementation"})
    due, found = Verdict(declared(nested)[law].verdict), set[Verdict]()
    for program in explorer.programs(its, nested):
        assert explorer.judge(its, program, right).verdict is Verdict.AGREES
        found.add(explorer.judge(its, program, nested).verdict)
        if due in found:
            break
    assert due in found


def test_every_mutant_says_what_is_wrong_and_is_caught_by_the_law_that_it_names() -> None:
    there = {name: value for name, value in vars(mutants).items() if isinstance(value, Mutant)}
    assert {mutants.catches(law) for law in mutants.names()} == there.keys()
    assert [name for name, one in there.items() if mutants.catches(one.law) != name] == []
    assert all(one.what for one in there.values())


def test_laws_without_a_mutant_are_those_that_nested_is_declared_not_to_keep() -> None:
    assert declared(impls.get("nested")).keys() & all_laws().keys() == mutants.BROKEN_BY_NESTED
