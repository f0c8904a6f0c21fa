"""Programs and plain's runs of them are the same in the process that they are sent to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, Law, all_laws
from conformance.judging.shared_programs import pack, unpack
from conformance.judging.verdicts import difference
from impls import get
from tests.support.numbered_programs import NESTED, made

FEW = replace(PROFILES["quick"], cases=3, certainty=1.0)
LAWS = all_laws()


def sent(law: Law, claims: Any = NESTED) -> tuple[Explorer, Explorer]:
    """An explorer that has drawn a law's programs and run plain, and one that got them."""
    here, there = Explorer("cpu", FEW, 0), Explorer("cpu", FEW, 1)
    for program in here.programs(law, claims):
        here.reference(program, "cpu", law.kind)
    unpack(there, law, claims, pack(here, law, claims))
    return here, there


@pytest.mark.parametrize(
    ("law", "claims"),
    [
        ("core_programs_equal_plain", "nested"),
        ("dropout_masks_are_replayed", "reentrant"),
        ("all_claimed_features_combined", "nested"),
        ("complex_tensors", "nested"),
        ("containers_as_outputs", "nested"),
        ("what_comes_back_looks_the_same", "graph"),
    ],
)
def test_programs_and_plains_runs_are_the_same_there(law: str, claims: str) -> None:
    here, there = sent(LAWS[law], get(claims))
    programs = here.programs(LAWS[law], get(claims))
    assert [one.source for one in there.programs(LAWS[law], get(claims))] == [one.source for one in programs]
    for program in programs:
        if program.source in there.references:
            one, other = here.references[program.source], there.references[program.source]
            assert [*one.notes] == [*other.notes]
            assert not any(difference(one.notes[label], other.notes[label]) for label in one.notes)
            assert (one.calls, one.nested, one.earlier, one.error) == (other.calls, other.nested, other.earlier, None)
    assert there.references.keys() or law == "what_comes_back_looks_the_same"


def test_a_run_that_failed_is_made_again_there() -> None:
    def failing(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
        raise ValueError(number)

    law = made(program=failing)
    here, there = sent(law)
    assert not there.references
    assert len(here.references) == len(there.programs(law, NESTED))


def test_what_plain_did_not_run_is_not_run_to_be_sent() -> None:
    here, there = Explorer("cpu", FEW, 0), Explorer("cpu", FEW, 1)
    unpack(there, LAWS["complex_tensors"], NESTED, pack(here, LAWS["complex_tensors"], NESTED))
    assert not here.references
    assert not there.references
    assert len(there.programs(LAWS["complex_tensors"], NESTED)) == len(here.programs(LAWS["complex_tensors"], NESTED))


def test_programs_that_cannot_be_sent_are_drawn_there() -> None:
    law, here, there = made(), Explorer("cpu", FEW, 0), Explorer("cpu", FEW, 1)
    unsendable: Any = SimpleNamespace(source="", make=lambda: None)
    here.begin(law)
    here.take(law, NESTED, [unsendable])
    packed = pack(here, law, NESTED)
    assert packed == b""
    unpack(there, law, NESTED, packed)
    assert unsendable not in there.programs(law, NESTED)
    assert there.programs(law, NESTED)
