"""Tensors that were there before the region: returned, hooked or changed by its function."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.judging.refusals import REQUIRES_GRAD
from conformance.programs.scenarios import saved_leaves
from conformance.programs.scenarios.regions import outside_tensors
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="structure")

_RETURNED = {"view": st.booleans(), "used": st.booleans(), "nested": st.booleans()}


@for_readers("everyday", "wrong state", "register_buffer, mask, position ids")
@law(named(outside_tensors.returned, held=st.sampled_from(["module", "closure"]), **_RETURNED), floor=6)
def test_buffers_among_the_outputs(case: Case) -> None:
    """A buffer or constant that the function returns, or a view of it, comes back as it is and takes part in the loss."""
    case.equals_plain()


_retaining = functools.partial(named, outside_tensors.retaining, passes=st.integers(1, 2))


@for_readers("advanced", "wrong gradient", "retain_grad, nested checkpoint, captum")
@law(_retaining(around=st.just("region")), needs=["nesting"], floor=1)
def test_gradients_that_a_function_retains_on_its_argument(case: Case) -> None:
    """After ``retain_grad`` in an inner region the caller's tensor has its gradient, as often as the function runs again."""
    case.equals_plain()


_LATER = {"put": st.sampled_from(["changing", "counting", "retain"]), "before": st.booleans(), "leaf": st.booleans()}
_LATER |= {"nested": st.sampled_from([False, "inside", "around"]), "passes": st.integers(1, 2)}
_LATER |= {"own": st.sampled_from([None, None, "once", "always"])}


@for_readers("advanced", "wrong gradient", "register_hook, retain_grad, autograd.grad, forces, interatomic potential")
@law(named(outside_tensors.hooked_later, **_LATER), needs=["higher-order"], floor=6, about=REQUIRES_GRAD)
def test_hooks_that_an_argument_gets_after_the_call(case: Case) -> None:
    """A hook or ``retain_grad`` that an argument gets after the call sees no gradient that the function takes of its own."""
    case.equals_plain()


# Elsewhere a copy cannot be told from other values without waiting for the device.
@for_readers("advanced", "wrong gradient", "retain_grad, save_on_cpu, closure")
@law(_retaining(around=st.just("copies")) | named(outside_tensors.passed_and_closed_over, copied=st.booleans()),
     needs=["nesting"], floor=3, devices=["cpu"])  # fmt: skip
def test_arguments_that_hooks_copy_stay_the_callers(case: Case) -> None:
    """Under hooks that copy, an argument whose caller keeps it comes back as itself: ``retain_grad`` and ``is`` say so."""
    case.equals_plain()


_CHANGING = {"read": st.booleans(), "through": st.booleans(), "nested": st.booleans()}


@for_readers("adversarial", "wrong gradient", "in place, closure, activation")
@law(named(outside_tensors.changing, change=st.sampled_from(["whole", "in part"]), **_CHANGING), gradients=False,
     recomputes=False)  # fmt: skip
def test_results_from_a_closure_that_a_function_changes(case: Case) -> None:
    """A function that changes the result of an operator in its closure in place gives plain's gradients, or an error."""
    case.equals_plain_or_refuses()


_THEN = st.sampled_from(["another backward", "clipping", "zeroing"])


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors, clip_grad_norm_, fused kernel")
@law(named(saved_leaves.returned, then=_THEN, nested=st.booleans()), floor=3)
def test_gradients_are_no_weights(case: Case) -> None:
    """A custom Function whose backward returns a leaf that it saved makes .grad a copy of it: changing one leaves the other."""
    case.equals_plain()


_USE = st.sampled_from(["an attribute", "the gradient"])


@for_readers("advanced", "wrong gradient", "autograd.Function, ctx.saved_tensors, main_grad, fused accumulation")
@law(named(saved_leaves.itself, use=_USE, nested=st.booleans()), floor=2)
def test_a_saved_leaf_is_itself(case: Case) -> None:
    """In the backward of a custom Function ctx.saved_tensors has the leaf that was saved, with its attributes and its .grad."""
    case.equals_plain()
