"""Gradients: every output and every gradient is plain's."""

from __future__ import annotations

from conformance.judge import Case
from conformance.law import law
from conformance.strategies import programs


@law(programs(), floor=8)
def test_core_programs_equal_plain(case: Case) -> None:
    """Outputs and all gradients equal plain's."""
    case.equals_plain()


@law(programs(always=["keyword"]), needs=["keyword-arguments"])
def test_keyword_arguments(case: Case) -> None:
    """A tensor passed by keyword gets plain's gradient."""
    case.equals_plain()
