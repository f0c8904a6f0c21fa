"""Lifetimes under errors and threads: whatever cuts a run short or moves it elsewhere, everything is as it was, and a retry is right."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance import law as laws
from conformance.judge import Case
from conformance.laws.test_lifetimes import all_freed, nothing_kept
from conformance.schedules import exactly, schedules
from conformance.strategies import named
from conformance.verdicts import Diverges
from conformance.written import lifetimes

law = functools.partial(laws.law, family="lifetimes")
PLACES = st.sampled_from(("forward", "backward"))
NO, YES = st.just(False), st.just(True)
ERRORS = st.sampled_from(("ValueError", "KeyboardInterrupt"))
_failing = functools.partial(named, lifetimes.after_an_error, error=ERRORS, where=PLACES, nested=st.booleans())


def _error_comes_out(case: Case) -> None:
    """The error that was raised inside is the one that came out."""
    notes = case.equals_plain().notes
    if "raised" in notes and notes["raised"] != notes.get("came"):
        raise Diverges(f"the function raised {notes['raised']}, {notes.get('came', 'nothing')} came out of it")


@law(exactly("error in forward", "forward", "error in forward", "backward", "drop", "error in forward"), floor=8)
def test_an_error_in_forward_keeps_nothing(case: Case) -> None:
    """After an error or an interrupt in a region's forward nothing of it is alive, and a retry gives plain's gradients."""
    all_freed(case)


@law(schedules(["error in backward", "retained"], steps=3), floor=8)
def test_an_error_in_recomputation_keeps_nothing(case: Case) -> None:
    """After an error or an interrupt in a recomputation nothing is alive, and a retry gives plain's gradients."""
    nothing_kept(case)


@law(exactly("forward", "error in backward", "drop", "forward", "backward", "drop"), floor=8)
def test_a_graph_that_failed_is_freed_when_dropped(case: Case) -> None:
    """A graph in whose recomputation an error was raised is freed with its outputs."""
    all_freed(case)


@law(_failing(noise=NO, autocast=NO), floor=3)
def test_an_error_leaves_hooks_and_grad_mode(case: Case) -> None:
    """An error inside a region comes out as it is; saved-tensor hooks and grad mode are then as before, and a retry is right."""
    _error_comes_out(case)


@law(_failing(noise=YES, autocast=NO), needs=["rng"], floor=3)
def test_an_error_leaves_the_stream_of_random_numbers(case: Case) -> None:
    """After an error inside a region the stream of random numbers is where it is under plain, and a retry is right."""
    _error_comes_out(case)


@law(_failing(noise=NO, autocast=YES), needs=["autocast"], floor=3)
def test_an_error_leaves_autocast(case: Case) -> None:
    """After an error inside a region autocast is as it was, and a retry is right."""
    _error_comes_out(case)


@law(named(lifetimes.two_threads, regions=st.integers(1, 3), nested=st.booleans()), floor=2)
def test_two_threads_over_one_graph(case: Case) -> None:
    """Two threads may go backward over one retained graph at the same time: gradients are plain's, and all is freed."""
    all_freed(case)


@law(named(lifetimes.other_thread, forward=st.booleans(), backward=st.booleans(), passes=st.integers(1, 2)), floor=3)
def test_backward_in_another_thread(case: Case) -> None:
    """Forward and backward may run in different threads: gradients are plain's, and all is freed."""
    all_freed(case)
