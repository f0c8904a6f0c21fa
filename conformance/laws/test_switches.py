"""Switches: context managers that override an option for the regions whose forward runs inside them."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.judge import Case
from conformance.judging.law import law
from conformance.programs.scenarios import switches
from conformance.programs.strategies import named
from conformance.rows.for_readers import for_readers


def _as_expected(case: Case) -> None:
    """Judge the checkpoint itself, whose module has the switches, without meters around the functions of regions."""
    case.wrapped = False
    case.as_expected()


_FAILS = st.sampled_from(["", "region", "context"])
_THREE = st.sampled_from([True, False, None])


@for_readers("advanced", "poor error", "set_checkpoint_debug_enabled, debug, determinism, mismatch")
@law(
    named(switches.debug, outer=_THREE, inner=_THREE, argument=st.booleans(), fails=_FAILS),
    needs=["determinism-check"],
    about=["debug", "set_checkpoint_debug_enabled"],
    gradients=False,
    recomputes=False,
)
def test_debug_is_switched_around_forward(case: Case) -> None:
    """The innermost set_checkpoint_debug_enabled around forward overrides debug, None does not, and an error ends it."""
    _as_expected(case)


@for_readers("advanced", "more work than needed", "set_checkpoint_early_stop, early_stop")
@law(
    named(switches.early_stop, outer=st.booleans(), inner=st.booleans(), argument=st.booleans(), fails=_FAILS),
    needs=["early-stop-option"],
    about=["set_checkpoint_early_stop"],
    gradients=False,
    recomputes=False,
)
def test_early_stop_is_switched_around_forward(case: Case) -> None:
    """The innermost set_checkpoint_early_stop around forward overrides early_stop, and an error ends it."""
    _as_expected(case)


_ELSEWHERE = {"setting": st.booleans(), "meanwhile": st.booleans()}


@for_readers("advanced", "wrong state", "set_checkpoint_debug_enabled, set_checkpoint_early_stop, threads")
@law(
    named(switches.on_another_thread, switch=st.just("set_checkpoint_debug_enabled"), **_ELSEWHERE)
    | named(switches.on_another_thread, switch=st.just("set_checkpoint_early_stop"), **_ELSEWHERE),
    needs=["determinism-check", "early-stop-option"],
    about=["debug", "set_checkpoint_debug_enabled", "set_checkpoint_early_stop"],
    gradients=False,
    recomputes=False,
    floor=3,
)
def test_switches_belong_to_a_thread(case: Case) -> None:
    """What set_checkpoint_debug_enabled or set_checkpoint_early_stop switch on a thread changes no region of another."""
    _as_expected(case)
