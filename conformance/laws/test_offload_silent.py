"""Offloaded models in which forward changes a buffer or a weight where no version counter tells, and reads it."""

from __future__ import annotations

import functools
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.offloaded_models import as_expected, equals_plain, plain_runs, written
from conformance.programs.scenarios import saved_leaves
from conformance.programs.scenarios.offload import gradients, silent_changes
from conformance.rows.for_readers import for_readers

offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, effort=0.4, floor=3)
HERE, FEW = st.just(False), st.integers(1, 2)
TRAINED = st.lists(st.sampled_from(("read", "statistics")), min_size=1, max_size=3).map(
    lambda steps: (*steps, "change in training")
)
CUT: dict[str, st.SearchStrategy[Any]] = {"slices": FEW, "checkpoint": st.booleans()}


def _steps(*changes: str) -> st.SearchStrategy[tuple[str, ...]]:
    """What a module does, in order: it changes something and reads it, and may do more."""
    pairs = st.sampled_from([*((change, "read") for change in changes), ("norm", "statistics")])
    more = st.lists(st.sampled_from(("read", "statistics", *changes)), max_size=2)
    return st.tuples(pairs, more).flatmap(lambda both: st.permutations([*both[0], *both[1]])).map(tuple)


@for_readers("advanced", "wrong gradient", "BatchNorm, running statistics, .data")
@offload_law(written(silent_changes.read, steps=_steps("change"), forwards=FEW, **CUT), effort=0.6)
def test_a_buffer_is_read_where_no_version_tells_of_its_changes(case: Case) -> None:
    """Running statistics, and a buffer that forward changes through .data, give plain's gradients when forward reads them."""
    equals_plain(case)


_AGAIN = _steps("change").map(lambda steps: ("start again", *steps))


@for_readers("advanced", "poor error", "BatchNorm, reset_running_stats, codebook, VQ-VAE, .data")
@offload_law(written(silent_changes.read, steps=_AGAIN, forwards=st.just(1), **CUT))
def test_silent_changes_after_one_that_a_version_tells_of(case: Case) -> None:
    """A buffer that forward changes in place, reads, and changes through .data or by batch norm gives plain's gradients."""
    equals_plain(case)


@for_readers("adversarial", "wrong gradient", "numpy, buffer")
@offload_law(written(silent_changes.through_numpy, first=st.booleans(), away=HERE, **CUT), devices=["cpu"])
def test_a_buffer_that_is_changed_through_numpy(case: Case) -> None:
    """A buffer that forward changes through numpy, which no operator of torch does, is plain's step by step."""
    equals_plain(case)


ROWS = st.lists(st.sampled_from((-3, 3)), min_size=2, max_size=3).map(tuple)


@for_readers("advanced", "wrong gradient", "BatchNorm, microbatch")
@offload_law(
    written(silent_changes.read_by_parts, steps=_steps("change", "change at times"), rows=ROWS),
    gradients=False,
    effort=0.6,
)
def test_microbatches_that_read_a_buffer_which_they_change(case: Case) -> None:
    """Gradients of microbatches are plain's part by part and after all parts; where these differ, backward is refused."""
    as_expected(case)


@for_readers("advanced", "wrong gradient", "BatchNorm, running statistics, siamese")
@offload_law(written(silent_changes.read_before_another_forward, steps=TRAINED, away=HERE, **CUT))
def test_a_later_forward_changes_what_an_earlier_one_read(case: Case) -> None:
    """Backward after another forward has changed running statistics gives plain's gradients, or is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses()


HOW = st.sampled_from(("in place", "a row", "other data"))


@for_readers("advanced", "wrong gradient", ".data, weight clipping, max norm, WGAN")
@offload_law(written(silent_changes.weights, how=HOW, forwards=FEW, **CUT))
def test_weights_may_change_where_no_version_tells(case: Case) -> None:
    """A weight that forward limits through .data, in place or by giving it other data, is plain's step by step."""
    equals_plain(case)


@for_readers("adversarial", "wrong gradient", ".data")
@offload_law(written(silent_changes.other_data, **CUT))
def test_a_weight_that_is_given_other_data_after_it_was_read(case: Case) -> None:
    """A weight that forward reads and then gives other data has plain's gradient, or backward is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses()


WHEN = st.sampled_from(("ahead", "between", "before"))


@for_readers("advanced", "wrong gradient", "forward hook, .data, weight clipping")
@offload_law(written(silent_changes.by_another_name, when=WHEN, quiet=st.booleans(), away=HERE, **CUT))
def test_a_hook_changes_what_it_took_before(case: Case) -> None:
    """A weight that a hook changes in forward, by a reference that it took before, is plain's, or it is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


@for_readers("adversarial", "wrong gradient", "view, in place")
@offload_law(written(silent_changes.views_between, checkpoint=st.booleans(), away=HERE), floor=1)
def test_a_slice_changes_a_view_of_its_input(case: Case) -> None:
    """A slice that changes one of two inputs that share memory, as a view does, gives plain's gradients, or is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


THEN = st.sampled_from(("another backward", "clipping", "zeroing"))


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors, clip_grad_norm_, fused kernel")
@offload_law(written(saved_leaves.returned_offloaded, then=THEN, checkpoint=st.booleans(), away=HERE), floor=2)
def test_gradients_of_offloaded_models_are_no_weights(case: Case) -> None:
    """A custom Function whose backward returns a leaf that it saved makes .grad a copy of it: changing one leaves the other."""
    equals_plain(case)


USE = st.sampled_from(("an attribute", "the gradient"))


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors, main_grad, fused accumulation")
@offload_law(written(saved_leaves.itself_offloaded, use=USE, checkpoint=st.booleans(), away=HERE), floor=1)
def test_a_saved_leaf_of_an_offloaded_model_is_itself(case: Case) -> None:
    """In the backward of a custom Function ctx.saved_tensors has the model's parameter, with its attributes and its .grad."""
    equals_plain(case)


@for_readers("advanced", "wrong gradient", "functional_call, ensemble, hypernetwork, MAML, stacked weights")
@offload_law(written(silent_changes.rows_of_one_tensor, calls=st.integers(2, 3), away=HERE, **CUT), floor=1)
def test_weights_that_are_rows_of_one_tensor(case: Case) -> None:
    """A model that is called with several rows of stacked weights before one backward has plain's gradient for each row."""
    equals_plain(case)


@for_readers("adversarial", "wrong gradient", "tied weights, load_state_dict, assign, optimizer in backward")
@offload_law(written(silent_changes.tied_by_memory_alone, buffer=st.booleans(), checkpoint=st.booleans(), away=HERE))
def test_weights_that_are_tied_by_their_memory_alone(case: Case) -> None:
    """A step in backward that changes a weight by another tensor in its memory gives plain's gradients, or is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", "optimizer in backward, post accumulate grad hook, fused optimizer")
@offload_law(written(gradients.steps_in_backward, quiet=st.booleans(), away=HERE, **CUT))
def test_steps_in_backward_come_after_what_runs_again(case: Case) -> None:
    """A hook that steps a weight as soon as its gradient is there does not change what a slice runs again with."""
    equals_plain(case)


ASKED: dict[str, st.SearchStrategy[Any]] = {"create": st.booleans(), "away": HERE, **CUT}


@for_readers("advanced", "wrong gradient", "interatomic potential, forces, autograd.grad, create_graph")
@offload_law(written(gradients.asked_for_in_forward, pair=st.just(True), **ASKED))
def test_a_slice_differentiates_one_input_by_another(case: Case) -> None:
    """A module that differentiates an input by another, as an energy by positions, gives plain's gradients, or is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


# A checkpointed slice refuses this on a device with threads of its own.
@for_readers("advanced", "poor error", "gradient penalty, autograd.grad, create_graph")
@offload_law(written(gradients.asked_for_in_forward, pair=st.just(False), **ASKED), devices=["cpu"])
def test_a_slice_differentiates_by_its_input(case: Case) -> None:
    """A module that differentiates what it computes by its own input gives plain's gradients."""
    equals_plain(case)


@for_readers("adversarial", "wrong gradient", "gradient penalty, autograd.grad, shared module, reference")
@offload_law(
    written(gradients.through_a_later_module, changes=st.booleans(), checkpoint=st.booleans(), away=HERE), devices=["cpu"]
)
def test_a_module_uses_a_later_one_of_its_slice(case: Case) -> None:
    """A module that uses a later one of its slice, or changes its buffer, before a backward in forward, is plain's."""
    equals_plain(case)


@for_readers("advanced", "wrong state", "gradient penalty, autograd.grad, exception, retry")
@offload_law(written(gradients.asked_for_before_an_error, fails=st.booleans(), away=HERE, **CUT), devices=["cpu"])
def test_modules_behind_one_that_differentiates_run_once_in_forward(case: Case) -> None:
    """What modules do behind one that runs backward in forward, they do once, also if one of them raises."""
    equals_plain(case)


ITERATORS = st.sampled_from(("an iterator", "a generator", "counted", "a file"))


@for_readers("advanced", "wrong gradient", "iterator, generator, itertools.count, file")
@offload_law(written(silent_changes.used_up, what=ITERATORS, between=st.booleans(), away=HERE, **CUT))
def test_an_iterator_that_a_slice_uses_up(case: Case) -> None:
    """A slice that goes on with an iterator which it is given, by the caller or by a slice, is plain's, or it is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)


STARTED = st.sampled_from(("in place", "assigned", "through data", "a weight"))
TIMES = st.sampled_from(("once", "every second time"))
READERS = st.sampled_from(("an operator", "a list"))


@for_readers(
    "everyday", "wrong gradient", "ActNorm, data-dependent initialization, codebook, k-means, normalization, first batch"
)
@offload_law(
    written(silent_changes.at_times, how=STARTED, when=TIMES, reads=READERS, inside=st.booleans(), away=HERE, **CUT), effort=0.6
)
def test_what_a_module_does_at_times(case: Case) -> None:
    """What a module does in its first call, or now and then, by a count in Python, gives plain's gradients, or is refused."""
    plain_runs(case)
    case.equals_plain_or_refuses(in_forward=True)
