"""Saved tensors on the CPU and checkpoints, one inside the other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import cast

from hypothesis import strategies as st

import impls
from conformance.costs.forward_trace import Frame, Slot, trace
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
    sometimes: Collection[str], inside: bool, due: Callable[[Program, str], int] | None = None
) -> st.SearchStrategy[Around]:
    """Programs whose regions are called through any checkpoint, in the context or with it inside the outermost ones."""

    def around(program: Program, name: str) -> Around:
        copies = 0 if due is None else due(program, name)
        if not inside:
            return Around(program, SAVED, checkpoint=name, place="second", due=copies)
        return Around(_entering(program), "", checkpoint=name, place="second", due=copies)

    return st.builds(around, programs(sometimes=sometimes), st.sampled_from(CHECKPOINTS))


def _entering(program: Program) -> Program:
    """The same program, with the context around all that an outermost region does."""
    body = [replace(one, body=(Block(f"with {SAVED}:", one.body),)) if isinstance(one, Region) else one for one in program.body]
    return replace(program, body=tuple(body))


def _saved_outside(program: Program, _: str) -> int:
    """How many tensors are saved outside of regions; the tensor inputs of these are among them (rule 2)."""
    return _copies(trace(program).frames[0], makes_leaves=False)


def _saved_inside(program: Program, checkpoint: str) -> int:
    """How many tensors the outermost regions save, each of them for itself."""
    makes_leaves = "closure-gradients" not in impls.get(checkpoint).capabilities  # of arguments, as reentrant ones do
    outside, *frames = trace(program).frames
    return sum(_copies(frame, makes_leaves=makes_leaves) for frame in frames if frame.parent is outside)


def _copies(frame: Frame, *, makes_leaves: bool) -> int:
    """How many copies are due of what a frame saves: one of each result, and one of a leaf for each time it is saved."""

    def is_leaf(slot: Slot) -> bool:
        of_others = slot.value.frame is not frame
        return slot.value.frame is None or not slot.value.grad or (makes_leaves and of_others)

    results = {slot.value for slot in frame.slots if not is_leaf(slot)}
    return len(results) + sum(map(is_leaf, frame.slots))


@for_readers("advanced", "leaked or late memory", "save_on_cpu, checkpoint")
@graph_law(_composed(CORE, inside=False, due=_saved_outside), effort=0.6, floor=2)
def test_around_regions_their_inputs_are_moved(case: Case) -> None:
    """Around checkpointed regions of any kind, their tensor inputs are moved to the CPU, and nothing of the inside is."""
    copied_to_the_cpu(case, cast(Around, case.program).due)


@for_readers("advanced", "leaked or late memory", "save_on_cpu, checkpoint")
@graph_law(_composed(CORE, inside=True, due=_saved_inside), effort=0.5, floor=2)
def test_inside_regions_what_they_save_is_moved(case: Case) -> None:
    """Inside a checkpointed region of any kind, what the region saves is moved to the CPU, each result once, and no more."""
    copied_to_the_cpu(case, cast(Around, case.program).due)


MIXED = [*CORE, "views", "inplace", "detach", "indices", "custom-function", "retain", "partial"]


@for_readers("advanced", "wrong gradient", "save_on_cpu, checkpoint")
@graph_law(_composed(MIXED, inside=False) | _composed(MIXED, inside=True), effort=0.5, floor=2)
def test_gradients_of_checkpoints_stay_as_they_are(case: Case) -> None:
    """Around checkpointed regions of any kind, and inside of them, gradients are those without moving anything."""
    case.equals_plain()
