"""Higher-order operators that write: what their functions change in place is plain's, or the change is refused."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.offloaded_models import equals_plain, written
from conformance.programs.scenarios import higher_order_operators
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

BOTH = st.booleans()
OPERATOR = st.sampled_from(["cond", "while_loop", "wrap"])
_WRITTEN = st.sampled_from(["a buffer", "a tensor outside", "a result"])
_ORDER = st.sampled_from(["saved first", "written first"])


@for_readers("advanced", "wrong gradient", "torch.cond, while_loop, higher-order operator, in place, buffer")
@law(named(higher_order_operators.writing, operator=OPERATOR, written=_WRITTEN, order=_ORDER, nested=BOTH),
     family="errors", floor=4, gradients=False, recomputes=False)  # fmt: skip
def test_what_higher_order_operators_write(case: Case) -> None:
    """A saved tensor that a branch of a torch.cond or the like changes in place makes no wrong gradient."""
    case.equals_plain_or_refuses()


@for_readers("advanced", "wrong state", "torch.cond, while_loop, higher-order operator, counter, buffer")
@law(named(higher_order_operators.counting, operator=OPERATOR, nested=BOTH), family="structure", floor=2)
def test_higher_order_operators_write_once(case: Case) -> None:
    """A tensor from outside that a branch of a torch.cond or the like changes, and nothing saves, is what plain leaves."""
    case.equals_plain()


_CUT = {"order": st.sampled_from(["read first", "written first"]), "slices": st.integers(1, 2), "checkpoint": BOTH}
_offloaded = functools.partial(
    written, higher_order_operators.writing_offloaded, operator=OPERATOR, away=st.just(False), **_CUT
)
offload_law = functools.partial(law, kind="offload", family="offload-models", recomputes=False, floor=3)


@for_readers("advanced", "wrong state", "torch.cond, while_loop, higher-order operator, buffer")
@offload_law(_offloaded(quiet=st.just(False)))
def test_buffers_that_higher_order_operators_write(case: Case) -> None:
    """A buffer that a branch of a torch.cond or the like changes in place in an offloaded model is plain's step by step."""
    equals_plain(case)


@for_readers("adversarial", "wrong state", "torch.cond, while_loop, higher-order operator, buffer, .data")
@offload_law(_offloaded(quiet=st.just(True)))
def test_buffers_that_higher_order_operators_write_where_no_version_tells(case: Case) -> None:
    """A buffer that a branch of a torch.cond or the like changes through .data in an offloaded model is plain's."""
    equals_plain(case)
