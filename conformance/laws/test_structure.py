"""Structure: arguments reach the function, and results come back, as they are."""

from __future__ import annotations

from conformance.judge import Case
from conformance.law import law
from conformance.strategies import programs


@law(programs(always=["keyword"]), needs=["keyword-arguments"], floor=8)
def test_keyword_arguments(case: Case) -> None:
    """A tensor passed by keyword gets plain's gradient."""
    case.equals_plain()


@law(programs(always=["containers"]), needs=["containers"], floor=8)
def test_containers_as_arguments(case: Case) -> None:
    """Tensors inside lists, tuples, dicts, namedtuples and dataclasses get plain's gradients."""
    case.equals_plain()


@law(programs(always=["container-outputs"]), needs=["containers"], floor=8)
def test_containers_as_outputs(case: Case) -> None:
    """A result in containers comes back in containers of the same types, and carries gradients."""
    case.equals_plain()


@law(programs(always=["non-tensors"]), needs=["non-tensor-arguments"], floor=8)
def test_non_tensor_arguments(case: Case) -> None:
    """None, numbers, strings and dtypes are passed on to the function."""
    case.equals_plain()


@law(programs(always=["non-tensor-outputs"]), floor=8)
def test_non_tensor_outputs(case: Case) -> None:
    """None and numbers among the outputs come back as they are."""
    case.equals_plain()


@law(programs(always=["unused-outputs"]), floor=8)
def test_unused_outputs(case: Case) -> None:
    """An output that nothing uses changes no gradient."""
    case.equals_plain()


@law(programs(always=["input-outputs"]), floor=8)
def test_outputs_that_are_inputs(case: Case) -> None:
    """A function may return one of its inputs."""
    case.equals_plain()


@law(programs(always=["view-outputs"]), floor=8)
def test_outputs_that_are_views(case: Case) -> None:
    """A function may return a value and a view of it."""
    case.equals_plain()


@law(programs(always=["repeated-outputs"]), floor=8)
def test_an_output_returned_twice(case: Case) -> None:
    """A function may return the same tensor twice."""
    case.equals_plain()


@law(programs(always=["repeated-inputs"]), floor=8)
def test_the_same_tensor_passed_twice(case: Case) -> None:
    """The same tensor may be passed twice."""
    case.equals_plain()


@law(programs(always=["no-grad-outputs"]), floor=8)
def test_outputs_without_grad(case: Case) -> None:
    """Detached and boolean outputs come back as such, and do not require grad."""
    case.equals_plain()
