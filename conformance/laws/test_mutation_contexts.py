"""Contexts in which saved tensors may be changed: nesting, their end, threads, lifetimes, and checkpoints inside."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

import impls
from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed, no_growth
from conformance.programs.scenarios.graph.mutation import changes as mutation
from conformance.programs.scenarios.graph.mutation import contexts, moved
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", family="mutation", recomputes=False)
BOTH = st.booleans()


@for_readers("advanced", "poor error", "allow_mutation_on_saved_tensors")
@graph_law(named(contexts.nested, depth=st.integers(1, 2), saved=BOTH), gradients=False, floor=3)
def test_contexts_cannot_be_nested(case: Case) -> None:
    """A context inside of another is refused with a RuntimeError, and the one around it goes on as before."""
    case.as_expected()


@for_readers("advanced", "poor error", "allow_mutation_on_saved_tensors")
@graph_law(named(contexts.left, change=st.sampled_from(["nothing", "inside", "after"]), other=BOTH), gradients=False)
def test_backward_after_the_context_is_refused(case: Case) -> None:
    """A backward after the context was left, or in another one, is refused with a RuntimeError that names the context."""
    case.as_expected()


ERROR = st.sampled_from(["Exception", "KeyboardInterrupt"])


@for_readers("advanced", "wrong state", "allow_mutation_on_saved_tensors, exception")
@graph_law(
    named(contexts.failed, error=ERROR, where=st.sampled_from(["forward", "backward"]), rounds=st.integers(1, 2)),
)
def test_a_context_is_over_after_an_error(case: Case) -> None:
    """After an error, changes are refused outside of the context again, and a new context works."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors")
@graph_law(named(contexts.several, contexts=st.integers(2, 3), change=st.sampled_from(["nothing", "input", "result", "both"])))
def test_one_context_after_another(case: Case) -> None:
    """Contexts one after another each give the gradients of the values that were saved in them."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, threads")
@graph_law(named(contexts.threads, first=st.integers(0, 1), backward=st.tuples(BOTH, BOTH)), gradients=False, floor=4)
def test_contexts_of_threads_are_independent(case: Case) -> None:
    """Two threads can be in a context of their own at the same time, and leave it in any order."""
    case.as_expected()


def _steps(*kinds: str) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from((*kinds, "change", "save")), min_size=1, max_size=4).map(tuple)


INFERENCE = ("inference", "inference item", "inference out")


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, inference_mode")
@graph_law(named(moved.steps, steps=_steps(*INFERENCE), result=BOTH))
def test_saved_tensors_changed_in_inference_mode(case: Case) -> None:
    """Tensors that are changed in inference mode after they were saved give the gradients of their saved values."""
    case.equals_plain()


BEGIN = st.sampled_from([("set",), ("save", "set"), ("set anew",), ("set", "save")])
SET = _steps("set", "set anew", "set back", "change the old", "change the other")


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, set_, .data")
@graph_law(named(moved.steps, steps=st.tuples(BEGIN, SET).map(lambda both: both[0] + both[1]), result=BOTH))
def test_a_saved_tensor_that_is_given_other_memory(case: Case) -> None:
    """Tensors that are given other memory after they were saved, and then changed, give the gradients of their saved values."""
    case.equals_plain()


NAMES = st.lists(st.sampled_from(["exp", "tanh", "sin", "matmul"]), min_size=1, max_size=3).map(tuple)
CHANGED = st.sampled_from(["nothing", "input", "result"])
FREEING = st.lists(st.sampled_from(["backward", "grad", "change", "drop"]), max_size=3).map(tuple)


@for_readers("advanced", "leaked or late memory", "allow_mutation_on_saved_tensors, memory leak")
@graph_law(
    named(contexts.freed, operators=NAMES, change=CHANGED, steps=FREEING, inside=BOTH), gradients=False, effort=0.6, floor=3
)
def test_originals_and_clones_die_with_their_graph(case: Case) -> None:
    """What was saved and what was cloned for it die with the graph, inside of the context and after it."""
    all_freed(case)


@for_readers("advanced", "leaked or late memory", "allow_mutation_on_saved_tensors, memory leak")
@graph_law(named(contexts.grows, change=BOTH), floor=2)
def test_a_context_leaves_nothing_behind(case: Case) -> None:
    """Step after step in one context there are no more objects than before."""
    case.equals_plain()
    no_growth(case)


CHECKPOINT = st.sampled_from(impls.names("checkpoint"))
CHANGE = st.sampled_from(["method", "view", "foreach"])


@for_readers("advanced", "wrong gradient", "allow_mutation_on_saved_tensors, checkpoint")
@graph_law(
    named(
        mutation.mixed,
        regions=CHECKPOINT,
        change=CHANGE,
        order=st.sampled_from(["before", "after"]),
        passes=st.integers(1, 2),
    ),
    effort=0.6,
    floor=3,
)
def test_changes_beside_checkpointed_regions(case: Case) -> None:
    """Beside checkpointed regions of any kind a changed tensor gives the gradients of its saved value."""
    case.equals_plain()


_UNSEEN = {"how": st.sampled_from(["elsewhere", "in backward"]), "result": st.booleans(), "again": st.booleans()}


@for_readers("adversarial", "wrong gradient", "allow_mutation_on_saved_tensors, threads")
@graph_law(named(contexts.unseen, **_UNSEEN), gradients=False, floor=3)
def test_a_change_that_the_context_does_not_see(case: Case) -> None:
    """A saved tensor that another thread changes, and a clone that backward changes, is refused; saved again, it is right."""
    case.as_expected()
