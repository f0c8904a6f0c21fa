"""Offloaded models in which something changes: random numbers, buffers, parameters, flags, and beside another thread."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.model_parts import SMOOTH
from conformance.programs.offloaded_models import SPLIT, as_expected, equals_plain, offloaded, plain_runs, written
from conformance.programs.scenarios.offload import changes, uses
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, effort=0.25, floor=2)
counted_law = functools.partial(offload_law, gradients=False)
HERE, FEW = st.just(False), st.integers(1, 3)
CUT: dict[str, st.SearchStrategy[Any]] = {"slices": FEW, "checkpoint": st.booleans()}


@for_readers("advanced", "wrong gradient", "torch.Generator, dropout")
@offload_law(written(changes.generated, passes=st.integers(1, 2), away=HERE, **CUT))
def test_a_generator_that_a_slice_is_given_is_replayed(case: Case) -> None:
    """Random numbers from a generator among a slice's inputs are plain's in each run, and it goes on from where it was."""
    equals_plain(case)


STARTS = st.lists(st.sampled_from((-1, 1)), min_size=2, max_size=3).map(tuple)


@for_readers("advanced", "wrong state", "BatchNorm, microbatch")
@counted_law(written(changes.seldom, SPLIT, starts=STARTS, slices=st.integers(1, 2), checkpoint=st.booleans()))
def test_a_buffer_that_some_microbatches_change(case: Case) -> None:
    """A buffer that not every microbatch changes is, in each run of each of them, what the plain model has on that part."""
    as_expected(case)


REPLACED = st.permutations((-1, 1, 2)).map(tuple)


@for_readers("adversarial", "wrong state", "moving average, data-dependent initialisation, microbatch, shared buffer")
@counted_law(written(changes.seldom, SPLIT, starts=REPLACED, slices=st.integers(1, 2), checkpoint=st.booleans()))
def test_a_buffer_that_another_microbatch_replaces(case: Case) -> None:
    """A buffer that one microbatch changes in place and another replaces is changed for whoever holds it."""
    as_expected(case)


ERRORS = st.sampled_from(("ValueError", "KeyboardInterrupt"))
STATES = st.sampled_from(("statistics", "in place", "assigned", "a weight"))


@for_readers("advanced", "wrong state", "exception, OOM")
@counted_law(written(changes.raised_after, what=STATES, index=st.integers(1, 2), error=ERRORS, microbatches=FEW, **CUT))
def test_what_changed_before_an_error_stays(case: Case) -> None:
    """Buffers and weights that forward changed before it raised are as the plain model's are then, however it is cut."""
    as_expected(case)


PLACES: dict[str, st.SearchStrategy[Any]] = {"first": st.booleans(), "after": st.booleans(), "index": st.integers(0, 2), **CUT}
READ = st.sampled_from(("mean", "weight"))


@for_readers("adversarial", "wrong gradient", "BatchNorm, checkpoint")
@counted_law(written(changes.changed_in_a_region, what=READ, **PLACES), effort=0.5)
def test_a_region_around_a_model_that_changes_what_it_reads(case: Case) -> None:
    """Where forward changes a weight or a buffer that it reads, a region around the model is right, or refuses that."""
    as_expected(case)


AHEAD = st.sampled_from(("in place", "replaced", "replaced by one on the device"))


@for_readers("adversarial", "wrong gradient", "forward hook, in place")
@offload_law(written(changes.changed_ahead, slices=st.integers(2, 3), checkpoint=st.booleans(), how=AHEAD))
def test_a_weight_that_changes_before_its_slice_runs(case: Case) -> None:
    """A weight that a hook changes or replaces while an earlier slice runs has its new value in its own slice."""
    equals_plain(case)


@for_readers("advanced", "wrong state", "shared buffer")
@offload_law(written(changes.shared_state, forwards=st.integers(1, 2), silent=st.booleans(), away=HERE, **CUT))
def test_a_buffer_that_two_slices_share(case: Case) -> None:
    """A buffer that modules of two slices share is, in the second, as the first has left it."""
    equals_plain(case)


@for_readers("adversarial", "wrong gradient", "LoRA, frozen, requires_grad_")
@offload_law(offloaded(uses.flag_between, SMOOTH, index=st.integers(0, 9), frozen=st.booleans(), away=HERE))
def test_a_flag_that_changes_before_backward(case: Case) -> None:
    """When a parameter is frozen or thawed between forward and backward, gradients are the plain model's."""
    equals_plain(case)


CHANGED = st.sampled_from(("", "weight", "scale"))


STEERED = {"slices": st.integers(1, 2), "checkpoint": st.booleans(), "changing": CHANGED, "quiet": st.booleans()}


@for_readers("advanced", "wrong gradient", "implicit layer, MAML, autograd.grad")
@offload_law(written(changes.steered, away=HERE, **STEERED))
def test_a_backward_inside_a_slice_sees_its_weights(case: Case) -> None:
    """A module that runs backward inside gets gradients at the weights that it has then, and changes what it does once."""
    equals_plain(case)


VIEWS = st.sampled_from(("conj", "negative", "real"))


@for_readers("adversarial", "wrong gradient", "conj, view, dtype")
@offload_law(written(changes.viewed, kind=VIEWS, away=HERE, **CUT))
def test_a_view_of_a_weight_is_loaded_again(case: Case) -> None:
    """Conjugated and negated views of a weight, and views of another dtype, are in backward what they were in forward."""
    equals_plain(case)


WHAT = st.sampled_from(("parameters", "buffers", "state", "loading"))


@for_readers("adversarial", "wrong state", "threads, state_dict, EMA")
@counted_law(written(changes.looked_at, what=WHAT, checkpoint=st.booleans(), away=HERE))
def test_another_thread_sees_no_copies(case: Case) -> None:
    """Parameters, buffers and state that another thread asks for or loads while a slice runs are the model's own."""
    as_expected(case)


@for_readers("advanced", "wrong state", "threads, BatchNorm, running statistics, concurrent")
@counted_law(written(changes.counted_on_threads, threads=st.integers(2, 3), rounds=st.integers(4, 8), **CUT))
def test_threads_lose_no_change_of_a_buffer(case: Case) -> None:
    """What forwards of one model change on several threads at once is all there: a buffer that counts calls counts each."""
    as_expected(case)


GRAPHS = ("with a graph", "assigned with a graph")
KEPT = st.sampled_from(("resized", *GRAPHS, "of two modules", "a parameter", "a leaf", "removed"))


@for_readers("adversarial", "wrong state", "resize, buffer")
@counted_law(written(changes.kept_from, what=KEPT, checkpoint=st.booleans()), effort=0.4)
def test_a_buffer_that_cannot_be_written_back_is_refused(case: Case) -> None:
    """A change of a buffer or parameter that cannot be written back raises an error that names it, and it keeps its value."""
    as_expected(case)


@for_readers("everyday", "wrong gradient", "microbatch, tensor_split")
@counted_law(written(changes.divided, rows=st.integers(1, 7), microbatches=st.integers(1, 4), away=HERE))
def test_rows_are_divided_as_by_tensor_split(case: Case) -> None:
    """Microbatches have as many rows each as the parts that torch.tensor_split makes."""
    as_expected(case)


AGAIN: dict[str, st.SearchStrategy[Any]] = {"slices": st.integers(2, 3), "checkpoint": st.just(True)}


@for_readers("advanced", "wrong gradient", "dataclass, custom object")
@offload_law(written(changes.given_objects, what=st.sampled_from(("another object", "nothing")), **AGAIN))
def test_an_object_between_slices_may_stay_or_be_new(case: Case) -> None:
    """Slices hand on an object of a class of the user's, as it is or another one, and gradients are plain's."""
    equals_plain(case)


CHANGED = st.sampled_from(("an attribute", "in a container", "a number"))


@for_readers("adversarial", "wrong gradient", "custom object, state")
@offload_law(written(changes.given_objects, what=CHANGED, **AGAIN))
def test_an_object_that_a_slice_changes(case: Case) -> None:
    """When a slice changes an object that it was given, gradients are plain's, or it is refused to run again with that."""
    plain_runs(case)
    case.equals_plain_or_refuses()


ADDED = st.sampled_from(("a slot", "an item", "in a list", "for None", "by name"))


@for_readers("adversarial", "wrong gradient", "KV cache, list, custom object")
@offload_law(written(changes.added_to_objects, what=ADDED, slices=st.just(2), checkpoint=st.just(True)), effort=1)
def test_an_object_that_a_slice_adds_to(case: Case) -> None:
    """When a slice adds to an object that it was given, gradients are plain's, or it is refused to run again with that."""
    plain_runs(case)
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", "auxiliary loss, MoE, self.aux")
@offload_law(written(changes.kept_by_modules, what=st.sampled_from(("weight", "input")), away=HERE, **AGAIN))
def test_a_tensor_that_a_module_keeps_for_later(case: Case) -> None:
    """Backward from a tensor that forward left in a module, after another backward, gives plain's gradients, or is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses()
