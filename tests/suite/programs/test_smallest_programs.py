"""The explorer finds each feature, and shrinks to a program of which no operator, region or leaf can be left out."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

import pytest

from conformance.judging.explorer import Explorer
from conformance.judging.judge import Case, execute
from conformance.judging.law import Law, Profile
from conformance.judging.verdicts import Diverges, Verdict
from conformance.programs.backward_calls import Request
from conformance.programs.generator.features import FEATURES
from conformance.programs.generator.operators import BINARY, UNARY, mixture
from conformance.programs.program import Block, Noted, Op, Program, Region, Statement, Step
from conformance.programs.strategies import CORE, programs
from conformance.reproducers.script_syntax import is_bound
from impls import get
from impls.plain import checkpoint as plain
from tests.support.feature_evidence import NEEDS, is_allowed, shows

NESTED = get("nested")
PROFILE = Profile(12, 200, True)  # a dozen cases are enough to find what every other one has


@functools.cache
def smallest(feature: str) -> Program:
    """What the explorer shows of a law that no program with the feature keeps."""

    def lacks(case: Case) -> None:
        if shows(feature, cast(Program, case.program)):
            raise Diverges("it is there")

    drawn = programs(always=NEEDS.get(feature, ()), sometimes=(*CORE, feature))
    result = Explorer("cpu", PROFILE, 0).hold(Law("made", "family", "It holds.", lacks, drawn), NESTED, NESTED)
    assert result.verdict is Verdict.DIVERGES, f"no program with {feature} was found"
    return cast(Program, result.program)


def renamed(part: Any, old: str, new: str) -> Any:
    """The same part of a program, with another name in all of its texts."""
    if isinstance(part, str):
        return re.sub(rf"\b{old}\b", new, part)
    if isinstance(part, tuple):
        return tuple(renamed(each, old, new) for each in part)
    if is_dataclass(part) and not isinstance(part, type):
        return replace(part, **{one.name: renamed(getattr(part, one.name), old, new) for one in fields(part) if one.init})
    return part


def operators(body: tuple[Statement, ...]) -> Iterator[Op]:
    """Every operator, those in regions and blocks among them."""
    for one in body:
        if isinstance(one, Op):
            yield one
        elif isinstance(one, Region | Block):
            yield from operators(one.body)


def without(body: tuple[Statement, ...], op: Op) -> tuple[Statement, ...]:
    """The statements without an operator."""
    inside = (replace(one, body=without(one.body, op)) if isinstance(one, Region | Block) else one for one in body)
    return tuple(one for one in inside if one != op)


def unasked(step: Step, name: str) -> Step:
    """A step of a driver that is not about a leaf."""
    match step:
        case Request(inputs=(*inputs,)):
            return replace(step, inputs=tuple(one for one in inputs if one != name))
        case Noted():
            return replace(step, value=re.sub(rf"(, )?\b{name}(\.grad)?\b", "", step.value).replace("[, ", "["))
    return step


def smaller(program: Program) -> Iterator[Program]:
    """The program without one operator, which reads instead what that one reads, or without one leaf."""
    for op in operators(program.body):
        for name in dict.fromkeys(op.args):
            yield renamed(replace(program, body=without(program.body, op)), op.target, name)
    for leaf in program.leaves:
        driver = tuple(unasked(step, leaf.name) for step in program.driver)
        yield replace(program, leaves=tuple(one for one in program.leaves if one != leaf), driver=driver)


def may_be_drawn(program: Program) -> bool:
    """Whether outputs differ, and each function begins with an operator that saves something for its recomputation.

    Before it there may be what reads arguments that are no tensors, and what mixes those that are.
    """
    saving = {one.template for one in (*UNARY, *BINARY) if one.saves != "nothing"}
    mixtures = {mixture(count).template for count in range(30)}
    bodies = [
        [one for one in region.body if not (isinstance(one, Op) and ("is None" in one.template or one.template in mixtures))]
        for region in program.regions
    ]
    begins = [body and isinstance(body[0], Op) and body[0].template in saving for body in bodies]
    return len({*program.outputs}) == len(program.outputs) and all(begins)


def unread(program: Program) -> set[str]:
    """Values that nothing is made of and nothing is asked about."""
    targets = {name for region in program.regions for name, _ in region.targets} | {op.target for op in operators(program.body)}
    return {name for name in targets if len(re.findall(rf"\b{name}\b", program.source)) < 2}


def is_valid(program: Program, feature: str) -> bool:
    """Whether the program is one that can be drawn, and proves something under plain, or raises what it may."""
    if not is_bound(program.source) or not may_be_drawn(program):
        return False
    seen = execute(program, plain, "cpu")
    return is_allowed(seen.error, feature) and (seen.error is not None or not seen.vacuous)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_found_and_shrinks_to_a_smallest_program_with_it(feature: str) -> None:
    found = smallest(feature)
    assert is_valid(found, feature)
    assert len(found.regions) == 1 + (feature == "nesting")
    for one in smaller(found):
        is_smaller = shows(feature, one) and is_valid(one, feature) and unread(one) <= unread(found)
        assert not is_smaller, f"{found.source}\nis not the smallest; this is smaller:\n{one.source}"


def test_what_is_too_much_is_noticed() -> None:
    """What is asked of smallest programs can fail: where there is an operator, or a leaf, too many."""
    feature = "keyword"
    found = smallest(feature)
    asked, output = found.driver[0], found.outputs[0]
    more = replace(found, body=(*found.body, Op("more", "torch.cos({0})", (output,), 5)), outputs=("more",))
    more = replace(more, driver=(renamed(asked, output, "more"), *found.driver[1:]))
    unused = replace(found, leaves=(*found.leaves, replace(found.leaves[0], name="unused")))
    for program in (more, unused):
        assert any(one == found and is_valid(one, feature) and shows(feature, one) for one in smaller(program))
