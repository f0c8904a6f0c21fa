"""Every mutant of the offloaded model is caught by the law that it names, and the laws have mutants."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections import Counter
from dataclasses import replace

import pytest

from conformance.law import LAWS, PROFILES, Explorer
from conformance.offload_mutants import OFFLOAD_MUTANTS, OffloadMutant, parts
from conformance.second_device import second
from conformance.verdicts import Verdict
from impls import get

for name in ("test_offload", "test_offload_models", "test_offload_costs"):
    importlib.import_module(f"conformance.laws.{name}")
OFFLOAD = get("offload")
BY_LAW = sorted(OFFLOAD_MUTANTS, key=lambda mutant: mutant.law)  # the explorer keeps the programs of one law at a time


@functools.cache
def explorer(profile: str) -> Explorer:
    second("cpu")  # autograd counts the devices at its first backward
    return Explorer("cpu", replace(PROFILES[profile], shrinks=0), 0)


@pytest.mark.parametrize("mutant", BY_LAW, ids=lambda mutant: mutant.name)
def test_its_law_catches_a_mutant(mutant: OffloadMutant) -> None:
    law = LAWS[mutant.law]
    assert (law.kind, law.family) == ("offload", mutant.family)
    result = explorer(mutant.profile).hold(law, mutant.implementation, OFFLOAD)
    assert not result.as_declared, f"{mutant.name} passes {law.name} with {result.verdict} in {result.cases} cases"
    assert not result.vacuous, f"{mutant.name} is not caught by {law.name}: {result.vacuous}"
    assert "NameError" not in result.detail, f"{mutant.name} is not a fault that runs: {result.detail}"


@pytest.mark.parametrize(
    "mutant", [next(group) for _, group in itertools.groupby(BY_LAW, lambda mutant: mutant.law)], ids=lambda m: m.law
)
def test_the_implementation_without_the_fault_keeps_the_law(mutant: OffloadMutant) -> None:
    result = explorer(mutant.profile).hold(LAWS[mutant.law], OFFLOAD, OFFLOAD)
    assert result.as_declared, f"{result.verdict}: {result.vacuous or result.detail}"
    assert result.verdict is Verdict.AGREES


def test_every_family_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.family for mutant in OFFLOAD_MUTANTS)
    families = {law.family for law in LAWS.values() if law.kind == "offload"}
    assert {family: counts[family] for family in families if counts[family] < 2} == {}


def test_mutants_have_names_and_faults_of_their_own() -> None:
    assert len({mutant.name for mutant in OFFLOAD_MUTANTS}) == len(OFFLOAD_MUTANTS)
    assert len({(mutant.part, mutant.text, mutant.fault, mutant.law) for mutant in OFFLOAD_MUTANTS}) == len(OFFLOAD_MUTANTS)


def test_parts_come_after_those_that_they_import() -> None:
    found = parts()
    assert found.index("cutting") < found.index("model")
    assert found.index("route") < found.index("attachment") < found.index("turn")


@pytest.mark.parametrize(("text", "times"), [("this is nowhere", 0), ("self.", "[0-9]+")])
def test_a_text_that_does_not_occur_once_is_refused(text: str, times: object) -> None:
    mutant = OffloadMutant("name", "offload", "two_models_at_once", "model", text, "")
    with pytest.raises(ValueError, match=rf"mutant name: '{text}' occurs {times} times in model, not once"):
        _ = mutant.implementation


@pytest.mark.parametrize("field", ["name", "family", "law", "part", "text"])
def test_an_empty_field_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is empty"):
        replace(OFFLOAD_MUTANTS[0], **{field: ""})


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="part is 'other'; it must be one of "):
        _ = replace(OFFLOAD_MUTANTS[0], part="other").implementation
