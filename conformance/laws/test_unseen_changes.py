"""Mutation: what a context that allows changes of saved tensors does not see is an error, and no wrong gradient."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.scenarios.graph.mutation import errors
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(laws.law, kind="graph", family="mutation", recomputes=False)
_UNSEEN = {"how": st.sampled_from(["elsewhere", "in backward"]), "result": st.booleans(), "again": st.booleans()}


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, threads")
@graph_law(named(errors.unseen, **_UNSEEN), gradients=False, floor=3)
def test_a_change_that_the_context_does_not_see(case: Case) -> None:
    """A saved tensor that another thread changes, and a clone that backward changes, is refused; saved again, it is right."""
    case.as_expected()
