"""What offloading costs: calls, copies of parameters, boundary activations, bytes between devices, and lifetimes, counted."""

from __future__ import annotations

import functools
import itertools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed, no_growth
from conformance.judging.verdicts import Diverges
from conformance.meters.meter import Storages
from conformance.meters.parameter_copies import Residents
from conformance.programs.notes import WHOLE_FORWARD, Note, Role
from conformance.programs.offloaded_models import Written, as_expected, equals_plain, greedy, plain_runs, written
from conformance.programs.scenarios.offload import costs, lifetimes
from conformance.rows.for_readers import for_readers

WIDTHS = st.lists(st.integers(2, 6), min_size=3, max_size=5).map(tuple)
# Parameters of each layer have a shape of their own, so that a copy is told from a copy of another.
DISTINCT = st.integers(4, 5).map(lambda count: tuple(range(2, 2 + count)))
SLICES, PASSES, CHECKPOINT = st.integers(1, 4), st.integers(1, 3), st.booleans()
MADE = Note(Role.VALUE, ("made",))  # the model is made, and has not run
COST_OF_FORWARD = Note(Role.COST, ("forward",))
MICROBATCHES = st.integers(0, 3)  # none: activations are not checkpointed
INDICES, FEW = st.integers(0, 9), st.integers(1, 3)
OPTIMIZERS, ERRORS = st.sampled_from(("SGD", "Adam")), st.sampled_from(("ValueError", "KeyboardInterrupt"))
HERE, AWAY = st.just(False), st.just(True)
offload_law = functools.partial(law, kind="offload", recomputes=False, family="offload-costs", effort=0.4, floor=3)
counted_law = functools.partial(offload_law, gradients=False)


@for_readers("everyday", "more work than needed", "recomputation, FLOPs")
@counted_law(written(costs.calls, widths=WIDTHS, slices=SLICES, microbatches=MICROBATCHES, passes=PASSES))
def test_each_slice_runs_forward_twice(case: Case) -> None:
    """Every module is called once a microbatch in forward, and with checkpointed activations once more in each backward."""
    as_expected(case)


@for_readers("everyday", "more work than needed", "num_slices, balance")
@counted_law(
    written(
        costs.sliced,
        counts=st.lists(st.sampled_from((0, 0, 1, 2, 3, 6, 9)), min_size=3, max_size=7).map(tuple),
        slices=st.integers(1, 4),
        away=AWAY,
    )
)
def test_slices_are_those_of_the_greedy_rule(case: Case) -> None:
    """What is moved to the offload device in forward is the input of each slice, and slices are those of the greedy rule."""
    as_expected(case)


# Slices of several layers: plain keeps the inputs of layers, which are those of slices where each slice has one layer.
_DEEP: dict[str, st.SearchStrategy[Any]] = {
    "widths": st.lists(st.integers(2, 6), min_size=3, max_size=7).map(tuple),
    "slices": st.integers(1, 2),
}


@for_readers("everyday", "leaked or late memory", "activation memory, peak memory")
@offload_law(written(costs.boundaries, microbatches=FEW, rows=st.integers(3, 7), away=HERE, **_DEEP))
def test_boundary_activations_alone_are_kept(case: Case) -> None:
    """After forward with checkpointed activations nothing is alive but the inputs of slices and the output."""
    storages = Storages()
    case.seen = seen = case.run(storages)
    equals_plain(case)
    made, forward = (next(m for m in storages.moments if m.note == note) for note in (MADE, WHOLE_FORWARD))
    kept = sum(storage.bytes for storage in forward.alive - made.alive)
    most = seen.notes["bytes"]
    if not 0 < kept <= most:
        raise Diverges(f"{kept} bytes are alive after forward, expected {most} at most: inputs of slices, and the output", None)


OVER = Note(Role.COST, ("over",))  # the layers of forward have run


def _layer(note: Note) -> int | None:
    """The layer that runs at a note "cost layer N"."""
    return note.number if note.role is Role.COST and note.words[0] == "layer" else None


def _slice_of_layer(case: Case) -> list[int]:
    """For each layer of a chain the number of its slice, of those that have parameters; a Tanh has the slice before it."""
    assert isinstance(case.program, Written)
    given = dict(case.program.program.arguments)
    widths = given["widths"]
    counts = [count for one, other in itertools.pairwise(widths) for count in ((one + 1) * other, 0)]
    made = [indices for indices in greedy(counts, given["slices"]) if sum(counts[index] for index in indices)]
    starts = [indices[0] for indices in made]
    return [sum(start <= index for start in starts) - 1 for index in range(len(counts))]


@for_readers("everyday", "leaked or late memory", "parameter memory, peak memory, GPU memory")
@offload_law(written(costs.resident, widths=DISTINCT, slices=SLICES, microbatches=MICROBATCHES, passes=PASSES, away=HERE))
def test_two_slices_of_parameters_are_resident_at_most(case: Case) -> None:
    """At most two neighbouring slices have copies alive at a time, the running one among them, and none do afterwards."""
    residents = Residents()
    case.seen = case.run(residents)
    equals_plain(case)
    owner = _slice_of_layer(case)
    appeared: set[int] = set()
    for moment in residents.moments:
        present = {owner[index // 2 * 2] for index in moment.copies}  # a Linear has two parameters, a Tanh has none
        appeared |= present
        when = f"at {moment.operator or 'the note'} after '{moment.note.label}'"
        where = f"{when} copies of slices {sorted(present)} are alive, expected"
        if moment.note == OVER and not moment.operator and present:
            raise Diverges(f"{where} none", None)
        if present and max(present) - min(present) > 1:
            raise Diverges(f"{where} one slice and its neighbour at most", None)
        index = _layer(moment.note)
        if index is not None and not moment.operator and index % 2 == 0 and owner[index] not in present:
            raise Diverges(f"{where} those of slice {owner[index]}, which runs", None)
    if appeared != set(owner):
        raise Diverges(
            f"copies of the parameters of slices {sorted(appeared)} were made, expected of slices {sorted(set(owner))}"
        )


@for_readers("everyday", "more work than needed", "prefetch, overlap")
@offload_law(
    written(costs.resident, widths=DISTINCT, slices=SLICES, microbatches=FEW, passes=st.integers(1, 2), away=HERE),
    effort=0.2,
    floor=2,
)
def test_the_next_slice_is_on_its_way(case: Case) -> None:
    """While a slice runs there are copies of the one after it already; in backward, of the one before it."""
    residents = Residents()
    case.seen = case.run(residents)
    equals_plain(case)
    owner, step = _slice_of_layer(case), 1
    for moment in residents.moments:
        if moment.operator:
            continue
        index = _layer(moment.note)
        if moment.note == OVER:
            step = -1
        elif index is not None:
            following = owner[index] + step
            present = {owner[index // 2 * 2] for index in moment.copies}
            if following in owner and following not in present:
                where = f"at '{moment.note.label}' copies of slices {sorted(present)} are alive"
                raise Diverges(f"{where}, expected: of slice {following}, too", None)


@for_readers("advanced", "leaked or late memory", "saved_tensors_hooks, save_on_cpu")
@counted_law(written(costs.packed, widths=WIDTHS, slices=SLICES, microbatches=MICROBATCHES), effort=0.2, floor=2)
def test_hooks_around_get_the_inputs_of_slices(case: Case) -> None:
    """Saved-tensor hooks around get the inputs of slices with checkpoints, else all but parameters; what they give is used."""
    as_expected(case)


@for_readers("everyday", "leaked or late memory", "optimizer state, parameter memory, CPU offload")
@counted_law(written(costs.at_home, widths=WIDTHS, slices=SLICES, checkpoint=CHECKPOINT, optimizer=OPTIMIZERS, away=AWAY))
def test_parameters_stay_where_they_are(case: Case) -> None:
    """At all times the model's parameters, their gradients and the optimizer's state are on the offload device."""
    as_expected(case)


@for_readers("everyday", "more work than needed", "PCIe, bandwidth, transfers")
@counted_law(
    written(
        costs.traffic,
        widths=WIDTHS,
        slices=SLICES,
        microbatches=MICROBATCHES,
        frozen=st.sampled_from((0, 2)),
        steps=st.integers(1, 2),
        away=AWAY,
    )
)
def test_traffic_is_parameters_twice_in_and_gradients_out(case: Case) -> None:
    """In a step every parameter comes in twice and every gradient goes out once, and activations between slices out and in."""
    as_expected(case)


@for_readers("everyday", "more work than needed", "buffer, bandwidth, transfers")
@counted_law(
    written(
        costs.returning,
        width=st.integers(2, 4),
        slices=st.sampled_from((1, 3)),
        checkpoint=CHECKPOINT,
        training=st.booleans(),
        kind=st.sampled_from(("BatchNorm1d", "Counting", "Assigning")),
        away=AWAY,
    )
)
def test_only_what_changed_is_copied_back(case: Case) -> None:
    """A buffer that forward changes goes back to the offload device once a step, and one that it does not change never."""
    as_expected(case)


@for_readers("everyday", "more work than needed", "evaluation, inference, transfers")
@counted_law(
    written(
        costs.quiet_traffic,
        widths=WIDTHS,
        slices=SLICES,
        microbatches=MICROBATCHES,
        how=st.sampled_from(("no_grad", "inference_mode")),
        away=AWAY,
    ),
)
def test_without_gradients_parameters_come_in_once(case: Case) -> None:
    """Forward without gradients brings every parameter in once and takes nothing out."""
    as_expected(case)


AFTER = st.lists(st.sampled_from(("backward", "some", "forward", "no_grad", "spent")), min_size=1, max_size=4).map(tuple)


@for_readers("everyday", "leaked or late memory", "memory leak, validation")
@offload_law(written(lifetimes.dropped, widths=WIDTHS, slices=SLICES, microbatches=MICROBATCHES, after=AFTER, away=HERE))
def test_dropped_outputs_free_everything_of_a_model(case: Case) -> None:
    """Without its outputs nothing that a forward or backward made is alive but gradients, whatever was run before."""
    plain_runs(case)
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "exception, OOM")
@offload_law(
    written(
        lifetimes.failing,
        widths=WIDTHS,
        slices=SLICES,
        checkpoint=CHECKPOINT,
        index=INDICES,
        where=st.sampled_from(("forward", "again", "gradient")),
        error=ERRORS,
        away=HERE,
    )
)
def test_an_error_leaves_nothing_of_a_model_behind(case: Case) -> None:
    """After an error in forward, in a recomputation or in backward nothing is alive, and the next step is right."""
    plain_runs(case)
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "retain_graph")
@offload_law(
    written(
        lifetimes.retained,
        widths=WIDTHS,
        slices=SLICES,
        microbatches=MICROBATCHES,
        passes=PASSES,
        some=st.integers(0, 2),
        away=HERE,
    )
)
def test_a_retained_backward_leaves_what_was_there(case: Case) -> None:
    """After each backward over a retained graph nothing is alive that was not alive after forward, but gradients."""
    storages = Storages()
    case.seen = case.run(storages)
    equals_plain(case)
    before = next(moment for moment in storages.moments if moment.note in (WHOLE_FORWARD, COST_OF_FORWARD))
    for moment in storages.moments:
        new = moment.kept - before.alive
        if moment.note.words[:1] == ("again",) and new:
            raise Diverges(f"at '{moment.label}' {len(new)} storages are alive that were not after forward; expected: 0", None)


@for_readers("everyday", "leaked or late memory", "memory leak, training loop")
@offload_law(
    written(lifetimes.steps, widths=WIDTHS, slices=SLICES, microbatches=MICROBATCHES, failing=st.booleans(), away=HERE),
    effort=0.15,
    floor=1,
)
def test_steps_of_a_model_leave_nothing_behind(case: Case) -> None:
    """Step after step, also when some fail, there are no more Python objects than before."""
    equals_plain(case)
    no_growth(case)


ORDERS = st.lists(st.integers(0, 1), min_size=1, max_size=3).map(tuple)


@for_readers("everyday", "wrong gradient", "CUDA stream, overlap")
@offload_law(
    written(
        lifetimes.racing,
        widths=WIDTHS,
        slices=SLICES,
        checkpoint=CHECKPOINT,
        order=ORDERS,
        side=st.booleans(),
        away=AWAY,
    )
)
def test_copies_do_not_race(case: Case) -> None:
    """With copies on streams of their own nothing is read before it is there or freed before it is read."""
    equals_plain(case)


PARTS = {"slices": st.integers(1, 2), "microbatches": st.integers(2, 3), "failing": st.booleans(), "shared": st.booleans()}


@for_readers("everyday", "wrong gradient", "CUDA stream, microbatch")
@counted_law(written(lifetimes.racing_parts, away=AWAY, **PARTS), effort=0.4, floor=2)
def test_copies_of_microbatches_do_not_race(case: Case) -> None:
    """What one microbatch changes is there when the next one or a recomputation reads it, also after an error."""
    as_expected(case)
