"""Errors: what cannot be right is refused, and what a user's code does about exceptions does not get in the way."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import strategies as st

from conformance.judging.judge import Case, execute
from conformance.judging.law import law
from conformance.judging.verdicts import Diverges, Measured, Refuses
from conformance.meters.meter import Calls, Kernels
from conformance.programs.generator.operators import MATRIX_PRODUCT, UNARY
from conformance.programs.program import Named
from conformance.programs.scenarios import contexts, errors
from conformance.programs.scenarios.regions import visible_operators
from conformance.programs.strategies import named, programs
from conformance.rows.for_readers import for_readers
from impls.plain import checkpoint as plain

TRIES = st.integers(1, 2)
CHANGES = ["fewer", "shape", "dtype", "device"]


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


@for_readers("adversarial", "wrong gradient", "nondeterminism, control flow, determinism_check")
@law(named(errors.differing, change=st.sampled_from(CHANGES), before=st.integers(0, 2), tries=TRIES, nested=st.booleans()))
def test_other_saved_tensors_are_reported(case: Case) -> None:
    """A recomputation that saves fewer tensors, or one of another shape, dtype or device, is an error each time."""
    if case.equals_plain_or_refuses() and case.recomputed:
        raise Diverges("the recomputation saved other tensors than forward did, and nothing was said", Measured("raises"))


@for_readers("adversarial", "wrong gradient", "in place, nondeterminism")
@law(named(errors.differing, change=st.just("corrupts"), before=st.integers(0, 5), tries=TRIES, nested=st.booleans()))
def test_corruption_by_the_recomputation_is_reported(case: Case) -> None:
    """A recomputation that changes in place a tensor that was saved, which forward did not do, is an error."""
    if case.equals_plain_or_refuses() and case.recomputed:
        raise Diverges("the recomputation changed a saved tensor in place, and nothing was said", Measured("raises"))


@for_readers("adversarial", "wrong gradient", "nondeterminism, control flow")
@law(
    named(
        errors.differing,
        change=st.sampled_from(["more at the end", "more"]),
        before=st.integers(0, 5),
        tries=TRIES,
        nested=st.booleans(),
    ),
    needs=["early-stop-option"],
    early_stop=False,
)
def test_more_saved_tensors_are_reported(case: Case) -> None:
    """A recomputation that runs to its end and saves more tensors than forward did is an error."""
    _must_be_reported(case)


@for_readers("advanced", "poor error", "determinism_check")
@law(
    named(errors.tolerable, change=st.sampled_from(["dtype", "shape", "both"]), factor=st.sampled_from([2.0, 0.5])),
    needs=["determinism-check"],
    determinism_check="none",
)
def test_the_determinism_check_can_be_switched_off(case: Case) -> None:
    """With determinism_check="none" a recomputation may save tensors of other dtypes and shapes."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "determinism_check, nondeterminism")
@law(
    named(errors.differing, change=st.just("fewer"), before=st.integers(0, 5), tries=TRIES, nested=st.booleans()),
    needs=["determinism-check"],
    determinism_check="none",
)
def test_missing_tensors_are_reported_in_any_case(case: Case) -> None:
    """With determinism_check="none" a recomputation that does not bring a tensor that is needed is still an error."""
    _must_be_reported(case)


@for_readers("advanced", "poor error", "debug, determinism, mismatch")
@law(
    named(errors.listed, before=st.integers(0, 3), nested=st.booleans()),
    needs=["determinism-check"],
    gradients=False,
    debug=True,
)
def test_debug_lists_the_operators_of_both_runs(case: Case) -> None:
    """With debug=True the error for a recomputation that differs lists the operators of forward and of the recomputation."""
    case.equals_plain()


@for_readers("advanced", "poor error", "debug, determinism, mismatch, detach")
@law(
    named(errors.listed_alone, before=st.integers(0, 3), nested=st.booleans()),
    needs=["determinism-check"],
    gradients=False,
    debug=True,
)
def test_debug_lists_what_the_function_called_alone(case: Case) -> None:
    """With debug=True the error lists no operator that the function did not call, such as those that save a tensor."""
    case.equals_plain()


FUNCTION = ["function", "callable"]  # by which of these names a message may call it
WRONG: tuple[tuple[Any, list[str]], ...] = (
    (3, FUNCTION),
    (None, FUNCTION),
    ("sin", FUNCTION),
    ({"determinism_check": "sometimes"}, ["determinism_check"]),
    ({"no_such_option": 1}, ["no_such_option"]),
    ({"context_fn": 3}, ["context_fn"]),
    ({"checkpointing": True}, ["checkpointing"]),
)


@st.composite
def _wrong(draw: Any) -> Named:
    wrong, names = draw(st.sampled_from(WRONG))
    return Named(errors.refused, (("wrong", wrong), ("names", names)))


@for_readers("everyday", "poor error", "typo, unknown option")
@law(_wrong())
def test_wrong_arguments_are_refused(case: Case) -> None:
    """What is not callable, and options or values that do not exist, are refused by name before the function runs."""
    case.equals_plain()


@for_readers("adversarial", "poor error", "config, YAML, argparse, string, truthy, preserve_rng_state")
@law(named(errors.refused_flag, value=st.sampled_from(["False", "no", None, [True], 0.0])), floor=4)
def test_a_flag_is_true_or_false(case: Case) -> None:
    """Where preserve_rng_state is a string, a list, a float or None, it is refused by name."""
    case.equals_plain()


@for_readers("adversarial", "poor error", "context_fn, selective checkpointing, None, tuple")
@law(named(errors.refused_contexts, returned=st.sampled_from(["none", "one", "three", "other"])), floor=3)
def test_a_context_fn_that_returns_no_two_contexts_is_refused(case: Case) -> None:
    """Where context_fn returns anything else than two context managers, the error names it, and the function has not run."""
    case.equals_plain()


@for_readers("advanced", "wrong state", "context_fn, selective checkpointing")
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


@for_readers("advanced", "wrong state", "context_fn, selective checkpointing")
@law(named(errors.entered, grad=st.booleans(), after=st.integers(0, 2)), needs=["context-fn"], floor=3, gradients=False,
     recomputes=False)  # fmt: skip
def test_a_function_runs_inside_of_its_context(case: Case) -> None:
    """The context for a run is entered with grad mode off, too, and left without an error when the run stops early."""
    case.as_expected()


@for_readers("adversarial", "wrong gradient", "context_fn, suppress")
@law(
    named(errors.swallowed, before=st.integers(0, 5), grad=st.booleans()),
    needs=["context-fn"],
    context_fn=contexts.swallowing,
)
def test_a_context_that_swallows_is_refused(case: Case) -> None:
    """When the forward context swallows the function's exception, no value comes back."""
    case.equals_plain()


@for_readers("advanced", "wrong gradient", "SAC, selective activation checkpointing, context_fn, policy")
@law(
    programs(sometimes=["closure"], operators=(*UNARY, MATRIX_PRODUCT), depth=1),
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


_PRODUCTS = {"products": st.integers(1, 3), "nested": st.booleans()}


@for_readers("advanced", "leaked or late memory", "SAC, selective checkpointing, save_on_cpu")
@law(
    named(visible_operators.kept_by_a_policy, hooks=st.just(True), **_PRODUCTS),
    needs=["context-fn"],
    floor=3,
    context_fn=contexts.selective,
    respect_saved_tensors_hooks=True,
)
def test_hooks_get_what_a_policy_keeps_if_asked_to(case: Case) -> None:
    """With respect_saved_tensors_hooks, what PyTorch's selective contexts keep goes through the hooks around, inputs too."""
    case.as_expected()


@for_readers("advanced", "poor error", "SAC, selective checkpointing, warning")
@law(
    named(visible_operators.kept_by_a_policy, hooks=st.just(False), **_PRODUCTS),
    needs=["context-fn"],
    floor=3,
    context_fn=contexts.selective,
)
def test_a_policy_takes_no_hooks_for_the_users(case: Case) -> None:
    """PyTorch's selective contexts find no hooks of a user where there are none, and have nothing to warn of."""
    case.as_expected()


FORM = st.sampled_from(["fallback", "retry", "suppress"])


@for_readers("advanced", "wrong gradient", "try, except, fallback")
@law(named(errors.catching, catches=st.sampled_from(["Exception", "RuntimeError"]), form=FORM, nested=st.booleans()))
def test_except_exception_does_not_catch_the_stop(case: Case) -> None:
    """User code that catches any Exception of the last operator that saves catches none in a recomputation."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "bare except, BaseException")
@law(named(errors.catching, catches=st.just("BaseException"), form=FORM, nested=st.booleans()))
def test_swallowing_the_stop_changes_no_gradient(case: Case) -> None:
    """User code that swallows every BaseException gets plain's gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong state", "with, record_function, profiler")
@law(named(errors.managed, form=st.sampled_from(["class", "generator", "computing"]), nested=st.booleans()), floor=4)
def test_context_managers_inside_are_left(case: Case) -> None:
    """Context managers that a function enters are left in the recomputation, also when it stops early."""
    case.equals_plain()


@for_readers("advanced", "wrong state", "contextmanager, yield")
@law(named(errors.managed, form=st.just("without finally"), nested=st.booleans()), needs=["early-stop-option"], floor=2,
     early_stop=False)  # fmt: skip
def test_context_managers_without_finally(case: Case) -> None:
    """A context manager without finally is left by a recomputation that is not stopped early."""
    case.equals_plain()


_SCRIPTED = {"how": st.sampled_from(["script", "trace"]), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "TorchScript, torch.jit, JIT")
@law(named(errors.scripted, before=st.just(2), steps=st.integers(1, 3), alike=st.booleans(), **_SCRIPTED), floor=4)
def test_scripted_functions(case: Case) -> None:
    """A scripted or traced function that has been warmed up gets plain's gradients, step after step."""
    case.equals_plain()


_INSIDE = {"how": st.sampled_from(["trace", "text"]), "computed": st.booleans(), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "TorchScript, torch.jit, JIT")
@law(named(errors.scripted_inside, steps=st.integers(1, 3), **_INSIDE), floor=4, effort=0.5)
def test_functions_that_are_scripted_inside(case: Case) -> None:
    """What a region scripts or traces anew each time that it runs gets plain's gradients."""
    case.equals_plain()


@for_readers("adversarial", "wrong gradient", "TorchScript, torch.jit, JIT")
@law(
    named(errors.scripted, before=st.just(0), steps=st.integers(1, 3), alike=st.just(False), **_SCRIPTED),
    recomputes=False,
    floor=4,
)
def test_scripted_functions_that_specialise(case: Case) -> None:
    """A scripted function that saves other shapes from its second call on gets no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()


@for_readers("adversarial", "wrong gradient", "TorchScript, torch.jit, JIT")
@law(
    named(errors.scripted, before=st.just(0), steps=st.integers(1, 3), alike=st.just(True), **_SCRIPTED),
    recomputes=False,
    floor=4,
)
def test_scripted_functions_that_save_in_another_order(case: Case) -> None:
    """A scripted function that saves alike shapes in another order from its second call on gets no wrong gradient."""
    case.equals_plain_or_refuses()
