"""What laws about offloaded models are measured with: copies that are followed, slices, and texts that are complete."""

from __future__ import annotations

import pytest
import torch

from conformance.meters.parameter_copies import Residents
from conformance.programs.offloaded_models import DEFINITIONS, defined, greedy
from conformance.programs.program import load


def present(residents: Residents, operator: str) -> list[list[int]]:
    return [sorted(moment.copies) for moment in residents.moments if moment.operator.startswith(operator)]


def test_a_copy_is_followed_until_it_dies() -> None:
    one, other = torch.randn(2), torch.randn(3)
    with Residents() as residents:
        residents.at("leaves", (one, other))
        copy = other.clone()
        copy.sin()
        view = copy[:2]
        del copy
        view.cos()
        del view
        one.tan()
    assert [present(residents, name) for name in ("sin", "cos", "tan")] == [[[1]], [[1]], [[]]]


@pytest.mark.parametrize(
    "make", [torch.clone, lambda t: t.to(copy=True, dtype=t.dtype), lambda t: torch.empty_like(t).copy_(t)]
)
def test_copies_are_seen_however_they_are_made(make: object) -> None:
    leaf = torch.randn(4)
    with Residents() as residents:
        residents.at("leaves", (leaf,))
        copy = make(leaf)  # type: ignore[operator]
        assert residents.alive() == {0}
    assert copy is not leaf


def test_what_has_other_values_or_the_same_memory_is_no_copy() -> None:
    leaf = torch.randn(4)
    with Residents() as residents:
        residents.at("leaves", (leaf,))
        kept = [leaf + 1, leaf[:], leaf.detach(), leaf.reshape(2, 2).sum(0)]
        assert residents.alive() == frozenset()
    assert len(kept) == 4


def test_notes_of_costs_are_moments() -> None:
    with Residents() as residents:
        residents.at("leaves", (torch.randn(2),))
        residents.at("cost over", None)
    assert [(moment.note.label, moment.operator) for moment in residents.moments] == [("cost over", "")]


@pytest.mark.parametrize(
    ("counts", "slices", "expected"),
    [
        ([260, 20, 20, 40], 3, [[0], [1, 2, 3], []]),
        ([6, 0, 6, 0], 4, [[0], [1, 2], [3], []]),
        ([0, 0, 5], 2, [[0, 1, 2], []]),
        ([1, 1, 1, 1], 2, [[0, 1], [2, 3]]),
        ([7], 1, [[0]]),
    ],
)
def test_slices_are_those_of_the_rule(counts: list[int], slices: int, expected: list[list[int]]) -> None:
    assert greedy(counts, slices) == expected


def test_a_text_gets_the_definitions_of_its_definitions() -> None:
    text = defined("def run():\n    return note_gradients\n")
    assert text.index("def here(") < text.index("def note_gradients(") < text.index("def run(")
    assert "class Tied" not in text


def test_a_word_in_a_string_or_a_comment_asks_for_no_definition() -> None:
    text = "def run():\n    return 'Tied at a time'  # a second First\n"
    assert defined(text) == defined("def run(): pass\n").replace("def run(): pass\n", text)


@pytest.mark.parametrize("name", sorted(DEFINITIONS))
def test_a_definition_stands_on_its_own(name: str) -> None:
    class Text:
        source = defined(f"def run():\n    return {name}\n")

    assert load(Text())() is not None
