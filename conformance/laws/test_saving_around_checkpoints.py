"""Saved tensors on the CPU and checkpoints, one inside the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import cast

from hypothesis import strategies as st

import impls
from conformance.costs.forward_trace import trace
from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.program import Block, Program, Region
from conformance.programs.scenarios.graph.generated import SAVED, Around
from conformance.programs.scenarios.graph.meters import copied_to_the_cpu
from conformance.programs.strategies import CORE, programs
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", family="saving_on_cpu", recomputes=False)

CHECKPOINTS = [name for name in impls.names("checkpoint") if name != "plain"]


def _composed(
    sometimes: Collection[str], inside: bool, due: Callable[[Program], int] | None = None
) -> st.SearchStrategy[Around]:
    """Programs whose regions are called through any checkpoint, in the context or with it inside the outermost ones."""

    def around(program: Program, name: str) -> Around:
        copies = 0 if due is None else due(program)
        if not inside:
            return Around(program, SAVED, checkpoint=name, place="second", due=copies)
        return Around(_entering(program), "", checkpoint=name, place="second", due=copies)

    return st.builds(around, programs(sometimes=sometimes), st.sampled_from(CHECKPOINTS))


def _entering(program: Program) -> Program:
    """The same program, with the context around all that an outermost region does."""
    body = [replace(one, body=(Block(f"with {SAVED}:", one.body),)) if isinstance(one, Region) else one for one in program.body]
    return replace(program, body=tuple(body))


def _saved_outside(program: Program) -> int:
    """How many tensors are saved outside of regions; the tensor inputs of these are among them (rule 2)."""
    return len({slot.value for slot in trace(program).frames[0].slots})


def _saved_inside(program: Program) -> int:
    """How many tensors the outermost regions save, each of them for itself."""
    frames = trace(program).frames
    return sum(len({slot.value for slot in frame.slots}) for frame in frames if frame.parent is frames[0])


@for_readers("advanced", "leaked or late memory", "save_on_cpu, checkpoint")
@graph_law(_composed(CORE, inside=False, due=_saved_outside), effort=0.6, floor=2)
def test_around_regions_their_inputs_are_moved(case: Case) -> None:
    """Around checkpointed regions of any kind, tensor inputs are moved to the CPU, each once, and nothing of the inside is."""
    copied_to_the_cpu(case, cast(Around, case.program).due)


@for_readers("advanced", "leaked or late memory", "save_on_cpu, checkpoint")
@graph_law(_composed(CORE, inside=True, due=_saved_inside), effort=0.5, floor=2)
def test_inside_regions_what_they_save_is_moved(case: Case) -> None:
    """Inside a checkpointed region of any kind, what the region saves is moved to the CPU, each tensor once, and no more."""
    copied_to_the_cpu(case, cast(Around, case.program).due)


MIXED = [*CORE, "views", "inplace", "detach", "indices", "custom-function", "retain", "partial"]


@for_readers("advanced", "wrong gradient", "save_on_cpu, checkpoint")
@graph_law(_composed(MIXED, inside=False) | _composed(MIXED, inside=True), effort=0.5, floor=2)
def test_gradients_of_checkpoints_stay_as_they_are(case: Case) -> None:
    """Around checkpointed regions of any kind, and inside of them, gradients are those without moving anything."""
    case.equals_plain()
