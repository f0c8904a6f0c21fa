"""Lifetimes under errors and threads: what cuts a run short leaves everything as it was, and a retry is right."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.judging.leak_checks import all_freed, nothing_kept
from conformance.judging.refusals import CAPABILITIES, REQUIRES_GRAD
from conformance.judging.verdicts import Diverges, Measured
from conformance.programs.scenarios import lifetimes
from conformance.programs.scenarios.threads import concurrent_recomputations, threads
from conformance.programs.schedules import KINDS, Schedule, exactly, schedules
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers
from impls import Implementation

law = functools.partial(laws.law, family="lifetimes")
PLACES = st.sampled_from(("forward", "backward", "reading"))
NO, YES = st.just(False), st.just(True)
ERRORS = st.sampled_from(("ValueError", "KeyboardInterrupt"))
_failing = functools.partial(named, lifetimes.after_an_error, error=ERRORS, where=PLACES, nested=st.booleans())


def _error_comes_out(case: Case) -> None:
    """The error that was raised inside is the one that came out."""
    notes = case.equals_plain().notes
    if "raised" in notes and notes["raised"] != notes.get("came"):
        measured = Measured("noted", (("came", notes["raised"]),))
        raise Diverges(f"the function raised {notes['raised']}, {notes.get('came', 'nothing')} came out of it", measured)


@for_readers("advanced", "leaked or late memory", "exception, OOM, KeyboardInterrupt, retry")
@law(exactly("error in forward", "forward", "error in forward", "backward", "drop", "error in forward"), floor=8)
def test_an_error_in_forward_keeps_nothing(case: Case) -> None:
    """After an error or interrupt in a region's forward nothing of it is alive, and a retry gives plain's gradients."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "exception, OOM, KeyboardInterrupt, retry")
@law(exactly("forward", "error in backward", "whole", "error in backward", "backward"), floor=8)
def test_an_error_in_recomputation_keeps_nothing(case: Case) -> None:
    """After an error or an interrupt in a recomputation nothing is alive, and a retry gives plain's gradients."""
    nothing_kept(case)


@for_readers("advanced", "leaked or late memory", "exception, OOM")
@law(exactly("forward", "error in backward", "drop", "forward", "backward", "drop"), floor=8)
def test_a_graph_that_failed_is_freed_when_dropped(case: Case) -> None:
    """A graph in whose recomputation an error was raised is freed with its outputs."""
    all_freed(case)


@for_readers("advanced", "wrong state", "exception, OOM, retry")
@law(_failing(noise=NO, autocast=NO), floor=3)
def test_an_error_leaves_hooks_and_grad_mode(case: Case) -> None:
    """An error inside a region comes out as it is; hooks and grad mode are as before, and a retry is right."""
    _error_comes_out(case)


@for_readers("advanced", "wrong state", "exception, seed, retry")
@law(_failing(noise=YES, autocast=NO), needs=["rng"], floor=3)
def test_an_error_leaves_the_stream_of_random_numbers(case: Case) -> None:
    """After an error inside a region the stream of random numbers is plain's, and a retry is right."""
    _error_comes_out(case)


@for_readers("advanced", "wrong state", "exception, AMP, mixed precision")
@law(_failing(noise=NO, autocast=YES), needs=["autocast"], floor=3)
def test_an_error_leaves_autocast(case: Case) -> None:
    """After an error inside a region autocast is as it was, and a retry is right."""
    _error_comes_out(case)


_TWO = named(threads.two_threads, regions=st.integers(1, 3), nested=st.booleans())


@for_readers("advanced", "wrong gradient", "threads, retain_graph")
@law(_TWO | named(threads.two_outputs, nested=st.booleans()), floor=2)
def test_two_threads_over_one_graph(case: Case) -> None:
    """Two threads may go backward over one retained graph at once: gradients are plain's, and all is freed."""
    all_freed(case)


@for_readers("advanced", "wrong gradient", "threads, pipeline parallel")
@law(
    named(threads.other_thread, nested=st.just(True), forward=st.booleans(), backward=st.booleans(), passes=st.integers(1, 2)),
    floor=3,
)
def test_backward_in_another_thread(case: Case) -> None:
    """Forward and backward may run in different threads: gradients are plain's, and all is freed."""
    all_freed(case)


_MEANWHILE = {"waits": st.sampled_from(["forward", "backward"]), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "threads, pipeline parallel")
@law(named(threads.meanwhile, **_MEANWHILE), floor=3)
def test_a_forward_on_another_thread_meanwhile(case: Case) -> None:
    """A backward may run while a later region's forward is under way on another thread, and the other way round."""
    all_freed(case)


@for_readers("adversarial", "wrong gradient", "threads")
@law(named(threads.under_way, nested=st.booleans()), floor=2, about=REQUIRES_GRAD)
def test_backward_of_a_region_that_is_under_way(case: Case) -> None:
    """What a region has computed so far may go backward on another thread while the region's forward is under way."""
    all_freed(case)


_APART = {"where": st.sampled_from(["forward", "backward"]), "nested": st.booleans()}


# On an accelerator one thread runs the backwards of all.
@for_readers("adversarial", "wrong gradient", "threads, deadlock, DataParallel")
@law(named(threads.apart, **_APART), needs=["rng-option"], floor=3, effort=0.3, devices=["cpu"], preserve_rng_state=False)
def test_regions_of_two_threads_run_at_once(case: Case) -> None:
    """Functions of regions on two threads may wait for each other, in forward and when they run again."""
    case.equals_plain()


_CROSSING = {"order": st.sampled_from(["ya", "ay"]), "draws": st.booleans()}


@for_readers("adversarial", "wrong gradient", "threads, dropout")
@law(named(concurrent_recomputations.crossing, **_CROSSING), needs=["subset-requests", "nesting"], floor=2, effort=0.3,
     devices=["cpu"], about=REQUIRES_GRAD | CAPABILITIES["rng-option"])  # fmt: skip
def test_two_threads_ask_for_parts_of_nested_regions(case: Case) -> None:
    """Threads may ask at once for gradients of an output and an escaped intermediate, where only some regions replay draws."""
    case.equals_plain()


@for_readers("adversarial", "wrong state", "fork, multiprocessing, DataLoader")
@law(named(concurrent_recomputations.forked, nested=st.booleans()), floor=2, effort=0.3, devices=["cpu"])
def test_a_fork_while_another_thread_recomputes(case: Case) -> None:
    """A process that is forked while another thread recomputes can recompute."""
    case.equals_plain()


_FAILED = {"where": st.sampled_from(["forward", "backward"]), "nested": st.booleans()}


@for_readers("advanced", "wrong state", "threads, deadlock")
@law(named(threads.after_a_failure, **_FAILED), floor=3, effort=0.3)
def test_another_thread_goes_on_after_an_error(case: Case) -> None:
    """After an error in a region's forward or recomputation on one thread, another thread's backward does not wait for it."""
    case.equals_plain()


# The law about each kind of step alone. A schedule mixes the kinds whose law the implementation keeps.
ALONE = {
    "some": "a_backward_of_some_outputs_keeps_nothing",
    "whole": "a_retained_backward_keeps_nothing",
    "part": "a_backward_of_some_outputs_keeps_nothing",
    "spent": "a_backward_of_some_outputs_keeps_nothing",
    "again": "a_backward_that_is_refused_keeps_nothing",
    "drop": "dropping_the_outputs_frees_everything",
    "inputs": "a_request_for_some_gradients_keeps_nothing",
    "grad": "a_request_for_some_gradients_keeps_nothing",
    "create-graph": "a_differentiable_backward_keeps_nothing",
    "error in forward": "an_error_in_forward_keeps_nothing",
    "error in backward": "an_error_in_recomputation_keeps_nothing",
}


def _claimed(claims: Implementation) -> st.SearchStrategy[Schedule]:
    alone = {kind: laws.LAWS[name] for kind, name in ALONE.items() if name in laws.LAWS}
    kept = {kind for kind, one in alone.items() if claims.expected(one.name, one.needs) == "agrees"}
    return schedules([kind for kind in KINDS if kind in kept or kind == "forward"], steps=6, drop=True)


@for_readers("advanced", "wrong gradient", "pipeline, 1F1B, microbatches")
@law(_claimed, floor=8)
def test_schedules_in_any_order(case: Case) -> None:
    """Forward, backward of any kind, errors and drops in any order give plain's gradients, and keep nothing."""
    nothing_kept(case)
