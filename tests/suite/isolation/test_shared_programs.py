"""Programs and plain's runs of them are the same in the process that they are sent to."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.isolation.shared_programs import pack, unpack
from conformance.judging.explorer import Explorer
from conformance.judging.law import PROFILES, Law, all_laws
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
        ("an_edge_stands_for_an_input", "graph"),
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
            assert (one.calls, one.nested) == (other.calls, other.nested)
    assert there.references


def failing(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    raise ValueError(number)


def with_an_attempt(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    class Local:
        pass

    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    x.sum().backward()
    note("attempt 0")
    note("gradients 0", [x.grad])
    note("seen local", Local())


def with_a_subclass(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    note("forward", torch.ones(2).as_subclass(torch.nn.Buffer))
    note("sparse", torch.ones(2).to_sparse())


@pytest.mark.parametrize("program", [failing, with_an_attempt, with_a_subclass])
def test_a_run_that_may_not_survive_is_made_again_there(program: Any) -> None:
    law = made(program=program)
    here, there = sent(law)
    assert pack(here, law, NESTED) != b""  # the programs are sent
    assert not there.references
    assert len(here.references) == len(there.programs(law, NESTED))


def with_a_gradient(checkpoint: Any, note: Any, device: str, *, number: int) -> None:
    x = torch.ones(2, device=device, requires_grad=True)
    note("leaves", (x,))
    (x * (number + 1)).sum().backward()
    note("attempt 0")
    note("gradients 0", [x.grad])


def test_gradients_at_attempts_are_the_same_there() -> None:
    law = made(program=with_a_gradient)
    here, there = sent(law)
    assert len(there.references) == len(here.references) == len(there.programs(law, NESTED))
    for source, run in there.references.items():
        assert run.tried
        assert not any(map(difference, here.references[source].tried, run.tried))


def test_what_cannot_be_read_is_drawn_there() -> None:
    law, there = made(), Explorer("cpu", FEW, 1)
    unpack(there, law, NESTED, b"no pickle")
    assert there.programs(law, NESTED)


def test_what_plain_did_not_run_is_not_run_to_be_sent() -> None:
    here, there = Explorer("cpu", FEW, 0), Explorer("cpu", FEW, 1)
    unpack(there, LAWS["complex_tensors"], NESTED, pack(here, LAWS["complex_tensors"], NESTED))
    assert not here.references
    assert not there.references
    assert len(there.programs(LAWS["complex_tensors"], NESTED)) == len(here.programs(LAWS["complex_tensors"], NESTED))


def test_programs_that_cannot_be_sent_are_drawn_there() -> None:
    law, here, there = made(), Explorer("cpu", FEW, 0), Explorer("cpu", FEW, 1)
    unsendable: Any = SimpleNamespace(source="", make=lambda: None)
    here.use_drawn(law, NESTED, [unsendable])
    packed = pack(here, law, NESTED)
    assert packed == b""
    unpack(there, law, NESTED, packed)
    assert unsendable not in there.programs(law, NESTED)
    assert there.programs(law, NESTED)
