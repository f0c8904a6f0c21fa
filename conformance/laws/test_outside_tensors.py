"""Tensors from outside that a function was not passed: returned, hooked or changed by it."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
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
