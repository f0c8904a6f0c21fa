"""Every mutant is caught by the law that it names, and every family of laws has mutants."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import conformance
from conformance.law import LAWS, PROFILES, Explorer
from conformance.mutants import MUTANTS, Mutant
from conformance.verdicts import Verdict
from impls import get

DIRECTORY = Path(conformance.__file__).parent / "laws"
for path in sorted(DIRECTORY.glob("test_*.py")):
    importlib.import_module(f"conformance.laws.{path.stem}")
NESTED = get("nested")
BY_LAW = sorted(MUTANTS, key=lambda mutant: mutant.law)  # the explorer keeps the programs of one law at a time


@functools.cache
def explorer(profile: str) -> Explorer:
    return Explorer("cpu", replace(PROFILES[profile], shrinks=0), 0)


@pytest.mark.parametrize("mutant", BY_LAW, ids=lambda mutant: mutant.name)
def test_its_law_catches_a_mutant(mutant: Mutant) -> None:
    law = LAWS[mutant.law]
    assert law.family == mutant.family
    result = explorer(mutant.profile).hold(law, mutant.implementation, NESTED)
    assert not result.as_declared, f"{mutant.name} passes {law.name} with {result.verdict} in {result.cases} cases"


@pytest.mark.parametrize(
    "mutant", [next(group) for _, group in itertools.groupby(BY_LAW, lambda mutant: mutant.law)], ids=lambda m: m.law
)
def test_the_implementation_without_the_fault_keeps_the_law(mutant: Mutant) -> None:
    result = explorer(mutant.profile).hold(LAWS[mutant.law], NESTED, NESTED)
    assert result.as_declared, f"{result.verdict}: {result.vacuous or result.detail}"
    assert result.verdict is Verdict.AGREES


def test_every_family_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.family for mutant in MUTANTS)
    families = {law.family for law in LAWS.values() if law.kind == "checkpoint"}
    assert {family: counts[family] for family in families if counts[family] < 2} == {}


def test_mutants_have_names_and_faults_of_their_own() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.part, mutant.text, mutant.fault) for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize(("text", "times"), [("this is nowhere", 0), ("self.", "[0-9]+")])
def test_a_text_that_does_not_occur_once_is_refused(text: str, times: object) -> None:
    mutant = Mutant("name", "gradients", "core_programs_equal_plain", "nested", text, "")
    with pytest.raises(ValueError, match=rf"mutant name: '{text}' occurs {times} times in nested, not once"):
        _ = mutant.implementation


@pytest.mark.parametrize("field", ["name", "family", "law", "text"])
def test_an_empty_field_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is empty"):
        replace(MUTANTS[0], **{field: ""})


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="part is 'other'; it must be one of versions, "):
        replace(MUTANTS[0], part="other")


def test_a_mutant_shares_no_code_with_the_real_one() -> None:
    checkpoint = MUTANTS[0].implementation.checkpoint
    assert checkpoint is not NESTED.checkpoint
    assert checkpoint.__globals__["Inputs"] is not NESTED.checkpoint.__globals__["Inputs"]
