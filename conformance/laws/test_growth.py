"""Growth: work of Python and memory of the process follow what a program asks for, and nothing is left when that is gone."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.judging.leak_checks import all_freed
from conformance.programs.scenarios.models import growth
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

_MORE = st.sampled_from(["saved tensors", "arguments", "regions", "backward passes", "steps"])


@for_readers("everyday", "more work than needed", "quadratic, overhead, long sequence, many layers")
@law(named(growth.more_of_it, what=_MORE, count=st.just(40)), floor=4)
def test_work_of_python_grows_in_proportion(case: Case) -> None:
    """Four times as many saved tensors, arguments, regions, passes or steps take less than six times as many Python calls."""
    case.as_expected()


# The memory is that of the host. There are two programs, and each takes long.
@for_readers("everyday", "leaked or late memory", "RSS, process memory, numpy, peak memory, OOM")
@law(named(growth.resident, nested=st.booleans()), floor=1, effort=0.25, devices=["cpu"])
def test_the_process_grows_by_outputs_alone(case: Case) -> None:
    """After forward the process has grown by a region's output, whoever makes something: torch, numpy or Python."""
    case.as_expected()


@for_readers("everyday", "leaked or late memory", "memory leak, exception, nn.Module, register_hook")
@law(named(growth.left, where=st.sampled_from(["before", "inside"]), nested=st.booleans()), floor=2, recomputes=False)
def test_a_module_is_left_with_nothing(case: Case) -> None:
    """After an error in a hook and a retry, nothing of a graph that is gone is left on its modules or anywhere else."""
    case.wrapped = False  # else it would be left on what counts calls
    all_freed(case)
