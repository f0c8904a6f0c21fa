"""Saved tensors on the CPU: what is saved leaves the device once, comes back as it was, and composes with checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any, cast

from hypothesis import strategies as st

from conformance.judging.judge import Case, execute
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed
from conformance.judging.references import GRAPH
from conformance.judging.verdicts import Diverges
from conformance.programs.generator.operators import OPERATORS
from conformance.programs.notes import Role
from conformance.programs.program import Named, Program
from conformance.programs.scenarios.graph import saved, saving_on_cpu
from conformance.programs.scenarios.graph.generated import PINNED, SAVED, Around, Steps
from conformance.programs.scenarios.graph.meters import Due, Moved, Residents, Settled, Waits, copied_to_the_cpu, wrongly_moved
from conformance.programs.schedules import exactly, schedules
from conformance.programs.strategies import CORE, named, programs
from conformance.programs.sums import DIFFERENTIATED
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", recomputes=False)

BOTH = st.booleans()
# An operator that saves a buffer and then writes it gives a copy what is not there yet.
INSIDE = {*OPERATORS, "nesting", "no-grad", "hooks", "closure", "escaping"} - {"late-noise"}
REQUESTS = {"grad", "create-graph", "inputs", "partial", "retain", "stream"}
FEATURES = sorted({*INSIDE, *REQUESTS, "complex", "bfloat16", "non-contiguous"})
HERE = st.sampled_from(["graph.save_on_cpu()", "graph.save_on_cpu(pin_memory=True)"])


def _here(drawn: st.SearchStrategy[Program]) -> st.SearchStrategy[Around]:
    return st.builds(Around, drawn, HERE, BOTH, place=st.just("cpu"))


def _there(context: str, sometimes: Collection[str], backward: st.SearchStrategy[bool] = BOTH) -> st.SearchStrategy[Around]:
    return st.builds(Around, programs(sometimes=sometimes, depth=1), st.just(context), backward, place=st.just("second"))


@for_readers("everyday", "wrong gradient", "save_on_cpu, offload")
@graph_law(_here(programs(sometimes=[*FEATURES, "late-noise"], depth=1)), effort=0.8, floor=4)
def test_what_is_on_the_cpu_stays_as_it_is(case: Case) -> None:
    """For tensors on the CPU gradients equal plain's, whatever was saved and however they are asked for."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "save_on_cpu, offload, CUDA")
@graph_law(_there(SAVED, FEATURES), effort=0.5, floor=2)
def test_saved_tensors_come_back_to_the_device(case: Case) -> None:
    """For tensors on another device gradients equal plain's, whatever was saved and however they are asked for."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "save_on_cpu, pin_memory")
@graph_law(_there(PINNED, FEATURES), effort=0.5, floor=2)
def test_pinned_copies_do_not_race(case: Case) -> None:
    """With pinned memory, where copies both ways end only when somebody waits for them, gradients equal plain's."""
    case.equals_plain()


DENSE = ("leaf", "intermediate", "detached", "scalar", "empty", "transposed", "channels last", "conj", "bfloat16", "integer")
SPARSE = ("sparse", "csr", "csc")
GAPS = ("slice", "expanded", "overlapping", "neg")


def _returns(kinds: Sequence[str], place: str, pinned: st.SearchStrategy[bool]) -> st.SearchStrategy[Any]:
    return named(saving_on_cpu.returns, kind=st.sampled_from(kinds), pinned=pinned, place=st.just(place))


@for_readers("advanced", "wrong gradient", "save_on_cpu, strides, torch.sparse")
@graph_law(_returns([*DENSE, *GAPS, *SPARSE, "boolean"], "cpu", BOTH))
def test_what_was_on_the_cpu_looks_the_same(case: Case) -> None:
    """Values, strides, dtype, layout and conjugation of a tensor on the CPU, sparse ones too, are those that were saved."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "save_on_cpu, strides, conj")
@graph_law(_returns([*DENSE, "boolean"], "second", st.just(False)))
def test_what_comes_back_looks_the_same(case: Case) -> None:
    """Values, strides, dtype, device and conjugation of a dense tensor that was moved are those that were saved."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "save_on_cpu, expand, transpose, view")
@graph_law(_returns(GAPS, "second", st.just(False)), effort=0.5, floor=3)
def test_views_come_back_with_their_strides(case: Case) -> None:
    """Slices, expanded and overlapping views that were moved come back with their strides."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "save_on_cpu, pin_memory, strides")
@graph_law(_returns([*DENSE, *GAPS, "boolean"], "second", st.just(True)))
def test_what_comes_back_from_pinned_memory_looks_the_same(case: Case) -> None:
    """Through pinned memory too, values, strides, dtype, device and conjugation are those that were saved."""
    case.equals_plain()


@for_readers("everyday", "leaked or late memory", "save_on_cpu, GPU memory, peak memory")
@graph_law(
    st.builds(Steps, exactly("forward", "backward", depth=1), st.sampled_from([SAVED, PINNED]), st.just("second")),
    effort=0.5,
    floor=2,
)
def test_nothing_saved_stays_on_the_device(case: Case) -> None:
    """After forward nothing is alive on the device but what the program holds: what is saved lives on the CPU."""
    residents = Residents(Role.HELD)
    case.equals_plain()
    case.run(residents)
    for moment in residents.moments:
        if moment.note.role in residents.judged and moment.kept:
            raise Diverges(f"at '{moment.label}' {len(moment.kept)} storages on the device are alive; expected: 0", None)


def _due(case: Case) -> Due:
    due = Due()
    execute(case.program, GRAPH, case.device, (due,), "graph")
    return due


@for_readers("everyday", "more work than needed", "save_on_cpu, bandwidth, transfers")
@graph_law(
    _there(SAVED, [*CORE, "views", "saved-twice", "custom-function", "retain", "partial"], st.just(False)), effort=0.5, floor=2
)
def test_each_tensor_is_moved_once(case: Case) -> None:
    """A result is copied to the CPU once, however often it is saved, a leaf once a save, and back at most once a reading."""
    due, moved = _due(case), Moved()
    case.run(moved)
    out, back = moved.count("cpu"), moved.count("second")
    if out != len(due.tensors):
        told = f"{len(due.tensors)} tensors are saved, {out} are copied to the CPU"
        raise wrongly_moved(told, "copies to the CPU", len(due.tensors))
    most = sum(due.tensors.values())
    if moved.bytes() > most:
        raise wrongly_moved(f"{most} bytes are saved, {moved.bytes()} are copied to the CPU", "bytes to the CPU", most)
    if back > due.unpacked:
        told = f"saved tensors are read {due.unpacked} times, {back} are copied from the CPU"
        raise wrongly_moved(told, "copies from the CPU", due.unpacked)


BETWEEN = st.sampled_from(["nothing", "change", "drop"])


@for_readers("advanced", "more work than needed", "save_on_cpu, bandwidth, transfers")
@graph_law(named(saving_on_cpu.again, saves=st.integers(1, 4), between=BETWEEN, passes=st.integers(1, 2)))
def test_what_is_saved_again_is_moved_again_only_if_it_must_be(case: Case) -> None:
    """A result that is saved again is copied again if it was changed since, or if nothing needs the first copy any more."""
    chosen = dict(cast(Named, case.program).arguments)
    copied_to_the_cpu(case, 1 if chosen["between"] == "nothing" else chosen["saves"])


@for_readers("everyday", "wrong gradient", "save_on_cpu, BatchNorm, .data, EMA, running statistics, manual SGD")
@graph_law(
    named(saving_on_cpu.changed_unseen, what=st.sampled_from(["statistics", "a weight", "a swap"]), pinned=BOTH), floor=3
)
def test_what_changes_between_two_saves_where_no_version_tells(case: Case) -> None:
    """A weight or a statistic that changes between two saves, where no version tells, is saved as it is at each of them."""
    case.equals_plain()


PARTS = st.sampled_from(["rows", "columns", "row and column", "rows of a subclass"])


@for_readers("advanced", "wrong gradient", "save_on_cpu, chunk, split, view")
@graph_law(named(saving_on_cpu.parts, kind=PARTS, pinned=BOTH), floor=3)
def test_parts_of_one_tensor_are_told_apart(case: Case) -> None:
    """Of views of one tensor, of equal or other strides, each comes back with its own values."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "save_on_cpu, caching allocator")
@graph_law(named(saving_on_cpu.reused, count=st.integers(2, 5), pinned=BOTH), effort=0.3, floor=2)
def test_a_tensor_in_the_place_of_one_that_died(case: Case) -> None:
    """A tensor that is made where one that was saved has died, at its address and version, is saved for itself."""
    case.equals_plain()


SIZES = st.lists(st.integers(1, 8).map(lambda size: 2 * size), min_size=1, max_size=4).map(tuple)


@for_readers("advanced", "more work than needed", "save_on_cpu, min_bytes")
@graph_law(
    named(saving_on_cpu.small, sizes=SIZES, least=st.sampled_from([0, 4, 16, 17, 32, 1000]), views=BOTH),
    needs=["min-bytes"],
    effort=0.3,
    floor=2,
)
def test_small_tensors_stay(case: Case) -> None:
    """Tensors that take less than min_bytes stay where they are, and all others are moved."""
    case.as_expected()


WRONG = st.sampled_from([-1, 1.5, "many", None])


@for_readers("advanced", "poor error", "save_on_cpu, min_bytes")
@graph_law(named(saving_on_cpu.small_refused, wrong=WRONG), needs=["min-bytes"], gradients=False, floor=4)
def test_a_size_must_be_a_number_of_bytes(case: Case) -> None:
    """A negative min_bytes, and one that is no int, is refused before anything is saved, by an error that names it."""
    case.as_expected()


CHANGING = ["closure", "custom-function", "views", "retain"]


@for_readers("adversarial", "wrong gradient", "save_on_cpu, in place")
@graph_law(
    _here(programs(["mutated"], [*CORE, *CHANGING], depth=1) | programs(["corrupted"], CORE, depth=1)),
    gradients=False,
    floor=8,
)
def test_saving_on_the_cpu_does_not_hide_a_change(case: Case) -> None:
    """A tensor on the CPU that was changed in place after it was saved is an error, as it is in plain."""
    case.equals_plain()


CHANGES = st.sampled_from(["method", "part", "item", "out", "foreach", "copy", "nothing"])
INPUT_OR_RESULT = st.sampled_from(["input", "result", "function", "result of function"])


@for_readers("adversarial", "wrong gradient", "save_on_cpu, in place")
@graph_law(named(saved.changed, hooks=st.just("save_on_cpu"), saved=INPUT_OR_RESULT, change=CHANGES), gradients=False)
def test_saving_on_the_cpu_notices_any_change(case: Case) -> None:
    """Whatever wrote to a saved tensor on the CPU, input or output, backward raises, as in plain."""
    case.equals_plain()


OPERATOR = st.sampled_from(["sin", "exp", "square"])


@for_readers("adversarial", "wrong gradient", "save_on_cpu, in place")
@graph_law(
    named(saving_on_cpu.changed, operator=OPERATOR, change=st.sampled_from(["method", "part", "copy"]), pinned=BOTH),
    gradients=False,
)
def test_a_change_after_moving_gives_no_wrong_gradient(case: Case) -> None:
    """A tensor on another device that is changed in place after it was moved gives the right gradient, or an error."""
    case.as_expected()


@for_readers("everyday", "more work than needed", "save_on_cpu, pin_memory, synchronize, overlap")
@graph_law(_there(PINNED, CORE), effort=0.4, floor=2)
def test_pinned_copies_block_nobody(case: Case) -> None:
    """With pinned memory no copy between the devices is one that the host waits for."""
    waits = Waits()
    case.run(waits)
    if waits.blocking:
        raise Diverges(f"the host waits for copies {dict(waits.blocking)}", None)
    if not waits.free and _due(case).tensors:
        raise Diverges("tensors are saved, and nothing is copied", None)


FREEING = st.lists(st.sampled_from(["backward", "grad", "create-graph", "read"]), max_size=2).map(tuple)
NAMES = st.lists(st.sampled_from(["exp", "tanh", "sin", "matmul", "function"]), min_size=1, max_size=3).map(tuple)


@for_readers("everyday", "leaked or late memory", "save_on_cpu, memory leak")
@graph_law(
    named(
        saved.freed,
        DIFFERENTIATED,
        hooks=st.sampled_from(["save_on_cpu", "pinned"]),
        operators=NAMES,
        leaf=BOTH,
        steps=FREEING,
    ),
    gradients=False,
    effort=0.5,
    floor=4,
)
def test_a_graph_saved_on_the_cpu_is_freed(case: Case) -> None:
    """A graph of tensors on the CPU is freed with its outputs, whatever was asked of it before."""
    all_freed(case)


STEPS = schedules(["whole", "some", "part", "forward", "drop", "create-graph"], drop=True, depth=1)


@for_readers("everyday", "leaked or late memory", "save_on_cpu, memory leak")
@graph_law(st.builds(Steps, STEPS, st.just(SAVED), st.just("second")), effort=0.4, floor=2)
def test_copies_die_with_their_graph(case: Case) -> None:
    """Copies of saved tensors die with their graph, on both devices, before any backward and after each kind of it."""
    settled = Settled(Role.EMPTY, Role.END)
    case.equals_plain()
    case.run(settled)
    for moment in [*settled.moments, settled.end()]:
        if moment.note.role in settled.judged and moment.kept:
            raise Diverges(f"at '{moment.label}' {len(moment.kept)} storages are alive; expected: 0", None)
