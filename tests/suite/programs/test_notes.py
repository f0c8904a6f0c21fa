"""The first word of a label says what the note stands for, and nothing else does."""

from __future__ import annotations

import pytest

from conformance.programs.notes import Note, Role, read


@pytest.mark.parametrize(
    ("label", "role", "words"),
    [
        ("gradients 0", Role.GRADIENTS, ("0",)),
        ("grad of the input", Role.GRAD, ("of", "the", "input")),
        ("due before 2", Role.DUE, ("before", "2")),
        ("end", Role.END, ()),
        ("ended early", Role.VALUE, ("ended", "early")),
        ("the cost", Role.VALUE, ("the", "cost")),
        ("", Role.VALUE, ("",)),
    ],
)
def test_a_label_is_read_by_its_first_word(label: str, role: Role, words: tuple[str, ...]) -> None:
    assert read(label) == Note(role, words)
    assert read(label).label == label


def test_what_is_expected_and_seen_has_the_same_words() -> None:
    assert read("expected calls of f").about == read("seen calls of f").about == "calls of f"


def test_gradients_are_noted_in_four_ways() -> None:
    assert {role for role in Role if role.has_gradients} == {Role.GRADIENTS, Role.GRADIENT, Role.GRAD, Role.FIRST}
