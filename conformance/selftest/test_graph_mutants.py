"""Every mutant of the graph tools is caught by the law that it names, and every family of laws about graphs has mutants."""

from __future__ import annotations

import functools
import importlib
import itertools
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import conformance
from conformance.graph_faults import GRAPH_MUTANTS
from conformance.graph_mutants import GraphMutant
from conformance.law import LAWS, PROFILES, Explorer
from conformance.verdicts import Verdict
from impls import get

for path in sorted((Path(conformance.__file__).parent / "laws").glob("test_*.py")):
    importlib.import_module(f"conformance.laws.{path.stem}")
GRAPH = get("graph")
BY_LAW = sorted(GRAPH_MUTANTS, key=lambda mutant: mutant.law)  # the explorer keeps the programs of one law at a time
# What these say is kept by torch itself, and by nothing in the graph tools that could have a fault.
TORCHS_OWN = {
    "a_freed_graph_is_refused_under_hooks",
    "hooks_belong_to_a_thread",
    "disabling_belongs_to_a_thread",
    "nodes_are_known_as_such",
}


@functools.cache
def explorer(profile: str) -> Explorer:
    return Explorer("cpu", replace(PROFILES[profile], shrinks=0), 0)


@pytest.mark.parametrize("mutant", BY_LAW, ids=lambda mutant: mutant.name)
def test_its_law_catches_a_mutant(mutant: GraphMutant) -> None:
    law = LAWS[mutant.law]
    assert law.family == mutant.family
    result = explorer(mutant.profile).hold(law, mutant.implementation, GRAPH)
    assert not result.as_declared, f"{mutant.name} passes {law.name} with {result.verdict} in {result.cases} cases"


@pytest.mark.parametrize(
    "mutant", [next(group) for _, group in itertools.groupby(BY_LAW, lambda mutant: mutant.law)], ids=lambda m: m.law
)
def test_the_implementation_without_the_fault_keeps_the_law(mutant: GraphMutant) -> None:
    result = explorer(mutant.profile).hold(LAWS[mutant.law], GRAPH, GRAPH)
    assert result.as_declared, f"{result.verdict}: {result.vacuous or result.detail}"
    assert result.verdict is Verdict.AGREES


def test_every_law_has_a_mutant_unless_torch_keeps_it() -> None:
    laws = {name for name, law in LAWS.items() if law.kind == "graph"}
    assert laws - {mutant.law for mutant in GRAPH_MUTANTS} == TORCHS_OWN


def test_every_family_has_at_least_two_mutants() -> None:
    counts = Counter(mutant.family for mutant in GRAPH_MUTANTS)
    families = {law.family for law in LAWS.values() if law.kind == "graph"}
    assert {family: counts[family] for family in families if counts[family] < 2} == {}


def test_mutants_have_names_and_faults_of_their_own() -> None:
    assert len({mutant.name for mutant in GRAPH_MUTANTS}) == len(GRAPH_MUTANTS)
    assert len({(mutant.part, mutant.text, mutant.fault) for mutant in GRAPH_MUTANTS}) == len(GRAPH_MUTANTS)


@pytest.mark.parametrize(("text", "times"), [("this is nowhere", 0), ("self.", "[0-9]+")])
def test_a_text_that_does_not_occur_once_is_refused(text: str, times: object) -> None:
    mutant = GraphMutant("name", "hooks", "hooks_must_be_callable", "hooks", text, "")
    with pytest.raises(ValueError, match=rf"mutant name: '{text}' occurs {times} times in hooks, not once"):
        _ = mutant.implementation


@pytest.mark.parametrize("field", ["name", "family", "law", "text"])
def test_an_empty_field_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} is empty"):
        replace(GRAPH_MUTANTS[0], **{field: ""})


def test_an_unknown_part_is_refused() -> None:
    with pytest.raises(ValueError, match="part is 'other'; it must be one of memory, "):
        replace(GRAPH_MUTANTS[0], part="other")


def test_a_mutant_shares_no_code_with_the_real_one() -> None:
    made = GRAPH_MUTANTS[0].implementation.provides.saved_tensors_hooks
    assert made is not GRAPH.provides.saved_tensors_hooks
    assert made._pack.__globals__["_Saved"] is not GRAPH.provides.saved_tensors_hooks._pack.__globals__["_Saved"]
