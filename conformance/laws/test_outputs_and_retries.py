"""What an ordinary program does around its regions: changes outputs in place, tries again after an error, enters contexts."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs.scenarios.models import errors_and_contexts
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

law = functools.partial(laws.law, family="errors")
BOTH = st.booleans()
_CHANGED = st.sampled_from(["sum", "activation", "item", "view", "one of two", "between regions"])


@for_readers("everyday", "wrong gradient", "out += identity, nn.ReLU(inplace=True), ResNet, residual, in place")
@law(named(errors_and_contexts.residual, kind=_CHANGED, passes=st.integers(1, 2), nested=BOTH), floor=6)
def test_outputs_that_are_changed_in_place(case: Case) -> None:
    """An output that no operator saved may be changed in place, as by out += identity: gradients are plain's."""
    case.equals_plain()


_AGAIN = {"where": st.sampled_from(["hook", "function"]), "inner": BOTH, "retained": BOTH, "nested": BOTH}


@for_readers("advanced", "wrong gradient", "exception, retry, register_hook, autograd.Function, gradient clipping")
@law(named(errors_and_contexts.tried_again, **_AGAIN), floor=5)
def test_a_retry_after_an_error_in_backward(case: Case) -> None:
    """An error in a tensor hook or a custom Function's backward reaches the program as it is, and a retry is right."""
    case.equals_plain()


_CONTEXTS = st.sampled_from(["attention", "library", "threads"])


@for_readers("everyday", "wrong gradient", "sdpa_kernel, scaled_dot_product_attention, torch.backends, multithreading")
@law(named(errors_and_contexts.around_forward_alone, kind=_CONTEXTS, nested=BOTH), floor=2)
def test_contexts_around_forward_alone(case: Case) -> None:
    """A choice of kernels or threads that is in force around forward alone makes no wrong gradient: plain's, or an error."""
    case.equals_plain_or_refuses()
