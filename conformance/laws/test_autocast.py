"""Autocast: a recomputation computes in the precision of its forward, whatever is in force around backward."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.scenarios.state import autocast
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers

CAST = st.sampled_from([None, "off", "bfloat16", "float16"])


@for_readers("everyday", "wrong gradient", "AMP, mixed precision, bfloat16, float16, GradScaler")
@law(
    named(
        autocast.autocast,
        nested=st.just(True),
        around=CAST,
        inside=CAST,
        backward=CAST,
        cache=st.booleans(),
        other=st.booleans(),
        passes=st.integers(1, 4),
    ),
    needs=["autocast"],
    effort=0.5,
)
def test_autocast_is_forwards(case: Case) -> None:
    """A recomputation runs under forward's autocast, nested ones included, whatever is in force around backward."""
    case.equals_plain()


ORDER = st.sampled_from(["before", "after", "alone"])


@for_readers("everyday", "wrong gradient", "AMP, mixed precision, weight tying, shared weights")
@law(
    named(autocast.shared_weight, cache=st.booleans(), order=ORDER, steps=st.integers(1, 3), outside=st.booleans()),
    needs=["autocast"],
    effort=0.5,
)
def test_autocast_cache_keeps_gradients(case: Case) -> None:
    """A weight that is read inside and outside of regions under one autocast gets all its gradients, cached or not."""
    case.equals_plain()


_ELSEWHERE = {"dtype": st.sampled_from(["bfloat16", "float16"]), "passes": st.integers(1, 2), "nested": st.booleans()}


@for_readers("advanced", "wrong gradient", "AMP, mixed precision, threads")
@law(named(autocast.elsewhere, **_ELSEWHERE), needs=["autocast"], floor=3, effort=0.5)
def test_autocast_is_forwards_on_another_thread(case: Case) -> None:
    """A backward on another thread, where no autocast is in force, recomputes under forward's autocast."""
    case.equals_plain()


@for_readers("adversarial", "wrong state", "AMP, mixed precision, cache_enabled")
@law(named(autocast.switched_by_hand, around=st.booleans(), nested=st.booleans()), floor=3, effort=0.5)
def test_an_autocast_cache_that_a_function_switches(case: Case) -> None:
    """A function may switch the cache of autocast off and back on: backward leaves it as forward did."""
    case.equals_plain()
