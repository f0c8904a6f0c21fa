"""Results that a selective policy keeps and the function changes in place: never a wrong gradient that nobody notices."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.scenarios import contexts, kept_results
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

WORDS = "SAC, selective checkpointing, in place, allow_cache_entry_mutation"
policy_law = functools.partial(
    law, family="errors", needs=["context-fn"], floor=4, gradients=False, recomputes=False, about={"mutated"}
)
_changed = functools.partial(named, kept_results.changed, after=st.integers(0, 1), nested=st.booleans())
_CHANGE = st.sampled_from(["the whole", "a row", "an alias", "without grad", "an activation"])
_READER = st.sampled_from(["sin", "square", "exp"])


@for_readers("everyday", "wrong gradient", WORDS)
@policy_law(_changed(change=_CHANGE, reader=_READER), context_fn=contexts.selective)
def test_kept_results_that_are_changed(case: Case) -> None:
    """A result that a selective policy keeps and the function changes in place gives plain's gradients, or an error."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", WORDS)
@policy_law(_changed(change=_CHANGE, reader=st.sampled_from(["sin", "square"])), context_fn=contexts.allowing_changes)
def test_kept_results_that_may_be_changed_and_are_saved(case: Case) -> None:
    """With allow_cache_entry_mutation=True, a kept result that is changed and then saved makes no wrong gradient."""
    case.equals_plain_or_refuses()


_UNSAVED = st.sampled_from(["the whole", "a row", "an alias", "without grad"])  # a sigmoid in place saves its result


@for_readers("advanced", "wrong gradient", WORDS)
@policy_law(_changed(change=_UNSAVED, reader=st.just("exp")), context_fn=contexts.allowing_changes)
def test_kept_results_that_may_be_changed_and_are_read(case: Case) -> None:
    """With allow_cache_entry_mutation=True, a kept result that is changed, read and not saved makes no wrong gradient."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong gradient", "SAC, selective checkpointing, in place, GRU, unsafe_chunk, .data")
@policy_law(_changed(change=st.sampled_from([".data", "a chunk"]), reader=_READER), context_fn=contexts.selective)
def test_kept_results_that_change_where_no_version_tells(case: Case) -> None:
    """A kept result that changes through .data, or by chunks as a GRU's does, gives plain's gradients, or an error."""
    case.equals_plain_or_refuses()
