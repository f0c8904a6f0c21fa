"""One hook for several gradients: called once in each backward with final gradients, whatever else is going on."""

from __future__ import annotations

import functools
import itertools

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed, no_growth
from conformance.programs.scenarios.graph import gradient_handles as handles
from conformance.programs.scenarios.graph import gradients
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

graph_law = functools.partial(law, kind="graph", recomputes=False)

BOTH, MODE = st.booleans(), st.sampled_from(["all", "any"])
TENSORS = st.lists(st.sampled_from(["p", "q", "unused", "a", "b", "c", "d"]), min_size=1, max_size=4).map(tuple)
LOSS = st.sampled_from(["d", "b", "c + b", "a"])
WHOLE, PASSES = st.none(), st.integers(1, 3)


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, FSDP")
@graph_law(
    named(gradients.every, tensors=TENSORS, loss=LOSS, request=WHOLE, passes=PASSES), gradients=False, effort=0.7, floor=4
)
def test_a_hook_on_all_gets_final_gradients(case: Case) -> None:
    """In mode "all" the hook is called once a backward, with the gradients of autograd.grad, None where there is none."""
    case.as_expected()


NONLEAVES = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=3).map(tuple)
ASKED = st.lists(st.sampled_from(["p", "q", "a", "b"]), min_size=1, max_size=2, unique=True).map(tuple)


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, partial backward")
@graph_law(
    named(gradients.every, tensors=NONLEAVES, loss=LOSS, request=ASKED, passes=st.integers(1, 2)),
    gradients=False,
    effort=0.7,
    floor=4,
)
def test_a_hook_on_all_waits_for_those_that_take_part(case: Case) -> None:
    """Where a backward is asked for some gradients, the hook gets those of the tensors on the way there, None for others."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, autograd.grad")
@graph_law(named(gradients.every, tensors=TENSORS, loss=LOSS, request=ASKED, passes=st.integers(1, 2)), gradients=False)
def test_a_hook_on_leaves_when_some_are_asked_for(case: Case) -> None:
    """Where a backward is asked for some gradients, the hook gets those of the leaves asked for, None for the others."""
    case.as_expected()


NAMES = st.sampled_from([names for count in (1, 2, 3) for names in itertools.product("ab", repeat=count) if "a" in names])


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, autograd.Function")
@graph_law(named(gradients.undefined, order=NAMES, passes=st.integers(1, 2)), gradients=False)
def test_an_undefined_gradient_is_none(case: Case) -> None:
    """A tensor whose gradient a Function leaves undefined gets None, and holds nothing up."""
    case.as_expected()


CONSTANTS = st.sampled_from(["a constant", "constant a", "constant b a", "a b constant", "constant a constant"]).map(str.split)


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, frozen")
@graph_law(named(gradients.undefined, order=CONSTANTS.map(tuple), passes=st.integers(1, 2)), gradients=False)
def test_a_tensor_without_grad_gets_none(case: Case) -> None:
    """A tensor among others that does not require grad gets None, and holds nothing up."""
    case.as_expected()


WATCHED = st.lists(st.sampled_from("abc"), min_size=1, max_size=3, unique=True).map(tuple)


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook")
@graph_law(named(gradients.died, watched=WATCHED, dead=WATCHED, asked=WATCHED), gradients=False, effort=0.7)
def test_a_tensor_that_died_holds_nothing_up(case: Case) -> None:
    """Tensors that are watched and no longer there hold nothing up, and get None where the backward does not reach them."""
    case.as_expected()


CHOSEN = st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple)


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, FSDP")
@graph_law(
    named(gradients.first, chosen=CHOSEN, request=st.none() | st.integers(0, 4), passes=PASSES),
    gradients=False,
    effort=0.7,
    floor=4,
)
def test_a_hook_on_any_gets_the_first_gradient(case: Case) -> None:
    """In mode "any" the hook is called once a backward, with the gradient of the tensor that comes first."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, autograd.Function")
@graph_law(
    named(gradients.first_defined, order=st.sampled_from(["a", "ab", "ba", "bab"]).map(tuple), passes=st.integers(1, 2)),
    gradients=False,
    floor=3,
)
def test_an_undefined_gradient_is_not_the_first(case: Case) -> None:
    """In mode "any" a gradient that a Function leaves undefined does not count: the hook gets the first that is there."""
    case.as_expected()


_MOVED = {
    "change": st.sampled_from(["changed", "changed and read", "detached"]),
    "watched": st.sampled_from(["a", "ab", "ba"]).map(tuple),
}


@for_readers("adversarial", "wrong gradient", "register_multi_grad_hook, in place")
@graph_law(named(gradients.moved, passes=st.integers(1, 2), **_MOVED), gradients=False)
def test_a_watched_tensor_may_change_its_node(case: Case) -> None:
    """A tensor that is changed in place or detached after it is watched gets the gradient of what it was."""
    case.as_expected()


OTHER = st.sampled_from([(0,), (1,), (2,), (0, 1), (0, 2), (0, 1, 2)])


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, autograd.grad")
@graph_law(named(gradients.inside, mode=MODE, where=st.sampled_from(["hook", "between"]), other=OTHER), gradients=False)
def test_a_backward_inside_another_is_kept_apart(case: Case) -> None:
    """A backward that runs inside of another, in the hook or between its gradients, has a call of its own."""
    case.as_expected()


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, threads")
@graph_law(named(gradients.threads, mode=MODE, other=OTHER, first=BOTH), gradients=False, effort=0.5)
def test_backwards_on_two_threads_are_kept_apart(case: Case) -> None:
    """Two backwards at once over graphs that share the tensors have a call each, with their own gradients."""
    case.as_expected()


ERROR = st.sampled_from(["Exception", "KeyboardInterrupt"])
FAILING = named(handles.failing, mode=MODE, error=ERROR, where=st.sampled_from(["between", "hook"]), rounds=st.integers(1, 3))


@for_readers("advanced", "wrong gradient", "register_multi_grad_hook, exception")
@graph_law(FAILING)
def test_a_backward_after_an_error_is_right(case: Case) -> None:
    """After a backward that raised, in the hook or before all gradients were there, the next one calls the hook as usual."""
    case.equals_plain()


@for_readers("advanced", "leaked or late memory", "register_multi_grad_hook, exception")
@graph_law(FAILING)
def test_an_error_retains_no_gradient(case: Case) -> None:
    """After a backward that raised, in the hook or before all gradients were there, no gradient is kept."""
    all_freed(case)


WHEN = st.sampled_from(["before", "midway", "with", "after", "in another"])


@for_readers("advanced", "wrong state", "register_multi_grad_hook, remove")
@graph_law(named(handles.removed, mode=MODE, when=WHEN, again=BOTH), gradients=False)
def test_a_removed_hook_is_not_called(case: Case) -> None:
    """A hook that is removed, even while a backward is under way, is not called any more, and others are."""
    case.as_expected()


@for_readers("advanced", "poor error", "register_multi_grad_hook, parameters()")
@graph_law(
    named(handles.from_any_iterable, kind=st.sampled_from(["list", "dict", "ParameterList"]), mode=MODE),
    gradients=False,
)
def test_tensors_come_in_any_iterable(case: Case) -> None:
    """The tensors that a hook watches may come in any iterable, such as a ParameterList or the values of a dict."""
    case.as_expected()


@for_readers("advanced", "leaked or late memory", "register_multi_grad_hook, memory leak")
@graph_law(named(handles.let_go, mode=MODE, leaf=BOTH, used=BOTH, copied=BOTH), gradients=False)
def test_a_removed_hook_is_let_go(case: Case) -> None:
    """A hook that is removed is let go at once, though its handle and the tensors are still there."""
    case.as_expected()


@for_readers("advanced", "leaked or late memory", "register_multi_grad_hook, memory leak")
@graph_law(named(handles.come_and_go, mode=MODE, used=BOTH), gradients=False, floor=2)
def test_hooks_that_come_and_go_leave_nothing_behind(case: Case) -> None:
    """Hooks that are registered on the same tensors and removed, again and again, leave no more objects than before."""
    case.equals_plain()
    no_growth(case)


@for_readers("adversarial", "wrong state", "pickle, deepcopy, RemovableHandle")
@graph_law(
    named(handles.pickled, mode=MODE, way=st.sampled_from(["pickle", "copy", "deepcopy"]), tensors=st.integers(1, 3)),
    gradients=False,
)
def test_handles_pickle_and_copy(case: Case) -> None:
    """A handle can be pickled and copied, the hook goes on, and what comes back has a remove that can be called."""
    case.as_expected()


@for_readers("advanced", "leaked or late memory", "register_multi_grad_hook, memory leak")
@graph_law(named(handles.grows, mode=MODE, fails=BOTH, retained=BOTH), floor=4)
def test_repeated_backwards_leave_nothing_behind(case: Case) -> None:
    """Backward after backward, failed ones among them, there are no more objects than before."""
    case.equals_plain()
    no_growth(case)


KIND = st.sampled_from(["mode", "no grad", "number", "text"])


@for_readers("advanced", "poor error", "register_multi_grad_hook")
@graph_law(named(handles.wrong, kind=KIND, mode=MODE), gradients=False)
def test_what_has_no_gradient_cannot_be_watched(case: Case) -> None:
    """An unknown mode, a tensor that does not require grad, and what is no tensor is refused, and nothing is registered."""
    case.as_expected()
