"""The mutation score says what was caught, what survived, and which laws have no mutant."""

from __future__ import annotations

from hypothesis import strategies as st

from conformance.judging.law import Law
from conformance.mutants.score import Attempt, score

LAWS = {name: Law(name, name[0], "It holds.", lambda case: None, st.nothing()) for name in ("a1", "a2", "b1", "b2")}


def test_the_score_counts_by_family_and_names_what_is_missing() -> None:
    attempts = [
        Attempt("a", "a1", "one", True, "diverges", 3),
        Attempt("a", "a1", "two", True, "crashes", 5),
        Attempt("b", "b1", "three", False, "agrees", 0),
    ]
    head, a, b, total, *rest = score(attempts, LAWS, ["b2"])
    assert head.split()[:2] == ["mutation", "score"]
    assert a.split() == ["a", "2", "of", "2", "1", "of", "2", "5", "1", "crashes,", "1", "diverges"]
    assert b.split() == ["b", "0", "of", "1", "1", "of", "2", "0", "1", "agrees"]
    assert total.split()[:8] == ["all", "2", "of", "3", "2", "of", "4", "5"]
    assert rest == ["survived: three (b1)", "laws without a mutant here: 1: a2", "laws that nothing of ours can break: b2"]


def test_a_run_in_which_all_is_caught_names_nothing() -> None:
    attempts = [Attempt(name[0], name, f"mutant of {name}", True, "diverges", 1) for name in LAWS]
    assert len(score(attempts, LAWS, [])) == 4
