"""Errors: what cannot be right is refused, and what a user's code does about exceptions does not get in the way."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from conformance.judge import Case, execute
from conformance.law import law
from conformance.meters import Calls, Kernels
from conformance.nesting import if_nesting
from conformance.operators import UNARY
from conformance.strategies import named, programs
from conformance.verdicts import Diverges, Measured, Refuses
from conformance.written import changes, contexts, errors
from impls import Implementation
from impls.plain import checkpoint as plain

TRIES = st.integers(1, 2)
CHANGES = ["fewer", "shape", "dtype", "device"]


def _equals_or_refuses(case: Case) -> bool:
    """Whether there was an answer, which then is plain's. Where plain raises, only an error will do."""
    try:
        case.equals_plain()
    except Refuses:
        return False
    return True


def _must_be_reported(case: Case) -> None:
    """A refusal that comes after forward keeps the law; one in forward is of the option, and so is the verdict."""
    calls = Calls()
    try:
        case.run(calls)
    except Refuses:
        if "forward" not in calls.until:
            raise  # of the option, before anything could go wrong
        return
    raise Diverges("the recomputation saved other tensors than forward did, and nothing was said", Measured("raises"))


@law(named(errors.differing, change=st.sampled_from(CHANGES), before=st.integers(0, 2), tries=TRIES, nested=st.booleans()))
def test_other_saved_tensors_are_reported(case: Case) -> None:
    """A recomputation that saves fewer tensors, or one of another shape, dtype or device, is an error each time."""
    if _equals_or_refuses(case) and case.recomputed:
        raise Diverges("the recomputation saved other tensors than forward did, and nothing was said", Measured("raises"))


@law(named(errors.differing, change=st.just("corrupts"), before=st.integers(0, 5), tries=TRIES, nested=st.booleans()))
def test_corruption_by_the_recomputation_is_reported(case: Case) -> None:
    """A recomputation that changes in place a tensor that was saved, which forward did not do, is an error."""
    if _equals_or_refuses(case) and case.recomputed:
        raise Diverges("the recomputation changed a saved tensor in place, and nothing was said", Measured("raises"))


@law(
    named(errors.differing, change=st.just("more"), before=st.integers(0, 5), tries=TRIES, nested=st.booleans()),
    needs=["early-stop-option"],
    early_stop=False,
)
def test_more_saved_tensors_are_reported(case: Case) -> None:
    """A recomputation that runs to its end and saves more tensors than forward did is an error."""
    _must_be_reported(case)


@law(
    named(errors.tolerable, change=st.sampled_from(["dtype", "shape", "both"]), factor=st.sampled_from([2.0, 0.5])),
    needs=["determinism-check"],
    determinism_check="none",
)
def test_the_determinism_check_can_be_switched_off(case: Case) -> None:
    """With determinism_check="none" a recomputation may save tensors of other dtypes and shapes."""
    case.equals_plain()


@law(
    named(errors.differing, change=st.just("fewer"), before=st.integers(0, 5), tries=TRIES, nested=st.booleans()),
    needs=["determinism-check"],
    determinism_check="none",
)
def test_missing_tensors_are_reported_in_any_case(case: Case) -> None:
    """With determinism_check="none" a recomputation that does not bring a tensor that is needed is still an error."""
    _must_be_reported(case)


WRONG = (
    3,
    None,
    "sin",
    {"determinism_check": "sometimes"},
    {"no_such_option": 1},
    {"context_fn": 3},
    {"checkpointing": True},
)


@law(named(errors.refused, wrong=st.sampled_from(WRONG)))
def test_wrong_arguments_are_refused(case: Case) -> None:
    """What is not callable, and options or values that do not exist, are refused before the function runs."""
    case.equals_plain()


@law(
    programs(sometimes=["retain", "partial", "closure"], depth=1),
    needs=["context-fn"],
    floor=8,
    context_fn=contexts.logging,
)
def test_contexts_are_entered_once_for_each_run(case: Case) -> None:
    """Of the contexts from context_fn one is entered around each forward, the other around each recomputation."""
    contexts.Logged.log.clear()
    seen = case.run(contexts.Runs())
    forward = case.plain.calls.total()
    due = Counter({"forward": forward, "recomputation": seen.calls.total() - forward})
    entered = Counter(name for what, name in contexts.Logged.log if what == "enter")
    if entered != due:
        raise Diverges(f"contexts due {dict(due)}, entered {dict(entered)}", None)
    for run in zip(*[iter(contexts.Logged.log)] * 3, strict=True):
        if [what for what, _ in run] != ["enter", "run", "leave"]:
            raise Diverges(f"a function should run inside of its context, and this happened: {run}", None)


@law(named(errors.entered, grad=st.booleans(), after=st.integers(0, 2)), needs=["context-fn"], floor=3, gradients=False,
     recomputes=False)  # fmt: skip
def test_a_function_runs_inside_of_its_context(case: Case) -> None:
    """The context for a run is entered with grad mode off, too, and left without an error when the run stops early."""
    case.as_expected()


@law(
    named(errors.swallowed, before=st.integers(0, 5)),
    needs=["context-fn"],
    context_fn=contexts.swallowing,
)
def test_a_context_that_swallows_is_refused(case: Case) -> None:
    """When the forward context swallows the function's exception, no value comes back."""
    case.equals_plain()


@law(
    programs(sometimes=["closure"], operators=(*UNARY, "{0} @ {1}"), depth=1),
    needs=["context-fn"],
    floor=8,
    context_fn=contexts.selective,
)
def test_selective_checkpointing(case: Case) -> None:
    """With PyTorch's selective contexts gradients equal plain's, and operators to be saved do not run again."""
    case.equals_plain()
    here, there = Kernels({"mm"}), Kernels({"mm"})
    case.run(here)
    execute(case.program, plain, case.device, (there,))
    if here.counts != there.counts:
        measured = Measured("kernels", (("mm", there.counts["mm"]),))
        raise Diverges(f"mm runs {there.counts['mm']} times under plain, {here.counts['mm']} here", measured)


FORM = st.sampled_from(["fallback", "retry", "suppress"])


@law(named(errors.catching, catches=st.sampled_from(["Exception", "RuntimeError"]), form=FORM, nested=st.booleans()))
def test_except_exception_does_not_catch_the_stop(case: Case) -> None:
    """User code that handles every Exception of the last operator that saves never sees one in a recomputation."""
    case.equals_plain()


@law(named(errors.catching, catches=st.just("BaseException"), form=FORM, nested=st.booleans()))
def test_swallowing_the_stop_changes_no_gradient(case: Case) -> None:
    """User code that swallows every BaseException gets plain's gradients."""
    case.equals_plain()


@law(named(errors.managed, form=st.sampled_from(["class", "generator", "computing"]), nested=st.booleans()), floor=4)
def test_context_managers_inside_are_left(case: Case) -> None:
    """Context managers that a function enters are left in the recomputation, also when it stops early."""
    case.equals_plain()


@law(named(errors.managed, form=st.just("without finally"), nested=st.booleans()), needs=["early-stop-option"], floor=2,
     early_stop=False)  # fmt: skip
def test_context_managers_without_finally(case: Case) -> None:
    """A context manager without finally is left by a recomputation that is not stopped early."""
    case.equals_plain()


# For programs that plain may refuse before anything is recomputed.
RAISING: dict[str, Any] = {"gradients": False, "recomputes": False}
CLAIMED = {
    "containers": "containers",
    "keyword": "keyword-arguments",
    "grad": "subset-requests",
    "closure": "closure-gradients",
}


def _changing(
    *always: str, sometimes: Sequence[str] = (), besides: st.SearchStrategy[Any] | None = None, **options: Any
) -> Callable[[Implementation], Any]:
    """Programs that change tensors in place and otherwise keep to what an implementation claims; others besides."""

    def of(claims: Implementation) -> Any:
        drawn = ("nesting", "partial", "retain", "grad", *sometimes)
        made = programs(always, [f for f in drawn if CLAIMED.get(f) in {None, *claims.capabilities}], **options)
        return made if besides is None else made | besides

    return of


WHICH, BOTH = st.sampled_from(["first", "second"]), st.booleans()
_unsaved = functools.partial(named, changes.unsaved, changed=WHICH, after=st.integers(0, 1), parameters=BOTH, nested=BOTH)


@law(_changing("mutated", sometimes=["containers", "keyword"], besides=_unsaved(form=st.just("positional"))), floor=8,
     **RAISING)  # fmt: skip
def test_changes_between_forward_and_backward(case: Case) -> None:
    """A tensor changed in place after forward gives an error where plain raises, and never a wrong gradient."""
    _equals_or_refuses(case)


SAVING = ("torch.sin({0})", "{0} * {0}", "torch.sin({0}) * torch.cos({1})")  # these save what they read


@law(_changing("mutated-closure", "closure", operators=SAVING), floor=8, **RAISING)
def test_changed_closure_tensors(case: Case) -> None:
    """A saved parameter that functions read through a closure gives an error when it was changed in place."""
    _equals_or_refuses(case)


PASSED = st.sampled_from(["positional", "keyword", "list", "dict", "subclass"])


@law(_unsaved(form=PASSED), recomputes=False)
def test_changed_arguments_that_nothing_saved(case: Case) -> None:
    """An argument that plain did not save gives no wrong gradient when it is changed after forward or after a backward."""
    _equals_or_refuses(case)


_LAST = st.sampled_from(["tanh", "exp", "sigmoid"])
_output = named(changes.output, last=_LAST, before=st.integers(0, 1), tries=TRIES, nested=st.booleans())


@law(_output, **RAISING)
def test_changed_outputs(case: Case) -> None:
    """An output that its operator saved gives an error each time once it was changed, also after a backward, as in plain."""
    case.equals_plain()


@law(named(changes.argument, saved=BOTH, constant=BOTH, nested=BOTH), **RAISING)
def test_a_function_that_changes_its_argument(case: Case) -> None:
    """A function that changes an argument in place gives no wrong gradient: plain's, or an error."""
    _equals_or_refuses(case)


DEPTH = if_nesting(st.integers(0, 2), 0)
READ, REQUEST = st.sampled_from(["p", "q"]), st.sampled_from(["backward", "p", "q"])


@law(named(changes.stale, request=REQUEST, depth=DEPTH, changed=READ), **RAISING)
def test_gradients_beside_a_changed_weight(case: Case) -> None:
    """When a saved weight was changed in place, gradients that do not need it are plain's too, or there is an error."""
    _equals_or_refuses(case)


@law(named(changes.stale, request=st.just("backward"), depth=DEPTH, changed=READ) | _output, needs=["determinism-check"],
     determinism_check="none", **RAISING)  # fmt: skip
def test_changes_are_reported_in_any_case(case: Case) -> None:
    """With determinism_check="none", too, a saved tensor that was changed in place gives an error as under plain."""
    case.equals_plain()


@law(_changing("corrupted", sometimes=["closure"]), **RAISING, floor=8)
def test_changes_inside_after_saving(case: Case) -> None:
    """A tensor changed in place inside the function after an operator saved it gives an error where plain raises."""
    _equals_or_refuses(case)


CHANGE = st.sampled_from(["SGD", "Adam", "load_state_dict", "copy_"])


@law(named(changes.stepped, change=CHANGE, layer=st.integers(0, 2), regions=st.integers(1, 2)), **RAISING)
def test_weights_changed_before_backward(case: Case) -> None:
    """A weight changed before backward, by an optimizer step or load_state_dict, gives an error as under plain."""
    if case.plain.error is None:
        raise AssertionError("the program is to be one that plain refuses")
    case.equals_plain()


@law(named(changes.stepped_meanwhile, depth=DEPTH, shared=st.booleans()), **RAISING)
def test_weights_changed_during_backward(case: Case) -> None:
    """A weight that a hook changes during backward, as an optimizer in backward does, gives no wrong gradient."""
    _equals_or_refuses(case)


HOOKS, CHANGED = st.sampled_from(["save_on_cpu", "identity"]), st.sampled_from(["argument", "parameter", "output"])


@law(named(changes.hooked, hooks=HOOKS, changed=CHANGED, form=st.sampled_from(["alone", "list"])), **RAISING)
def test_hooks_around_do_not_hide_changes(case: Case) -> None:
    """Saved-tensor hooks around a region do not make a wrong gradient of a change in place that is an error without."""
    _, right = case.run().notes["right or none"]
    if not all(right):
        measured = Measured("noted", (("right or none", str([True for _ in right])),))
        raise Diverges(f"gradients of (p, x) should be right, or none after an error, and are right: {right}", measured)


@law(named(changes.copied, changes=st.integers(0, 3), nested=BOTH, around=BOTH))
def test_hooks_that_copy_after_changes(case: Case) -> None:
    """A tensor changed in place before it is passed is no error under hooks that bring back copies."""
    case.equals_plain()
