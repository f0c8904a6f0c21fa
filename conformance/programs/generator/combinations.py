"""Which features are drawn together: rows of features, so that each possible pair is in at least one row."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from conformance.programs.generator.features import is_possible
from conformance.programs.generator.operators import DTYPES

SIZE = 18  # of a row: more dropouts after each other leave no gradient
DRAWING = frozenset({"dropout", "late-noise", "training-layers"})  # features that draw random numbers


def are_possible(one: str, other: str) -> bool:
    """Whether a program can have both features: one dtype at most, and no random numbers under vmap, which refuses them."""
    for feature, with_it in ((one, other), (other, one)):
        if feature in DTYPES and (with_it in DTYPES or not is_possible(with_it, feature)):
            return False
        if feature == "batched-seeds" and with_it in DRAWING:
            return False
    return True


def covering(features: Iterable[str], size: int = SIZE) -> list[tuple[str, ...]]:
    """Rows of at most ``size`` features. Each possible pair is in one of them, and rows have no impossible pairs.

    Greedy: a row begins with the first pair that no row has, and then takes the feature that adds the most such pairs.
    """
    named = sorted(features)
    due = {pair for pair in combinations(named, 2) if are_possible(*pair)}
    possible = frozenset(due)
    rows: list[tuple[str, ...]] = []

    def fits(feature: str, row: list[str]) -> bool:
        return all(tuple(sorted((feature, one))) in possible for one in row)

    def brings(feature: str, row: list[str]) -> int:
        return sum(tuple(sorted((feature, one))) in due for one in row)

    while due:
        row = [*min(due)]
        while len(row) < size and (others := [one for one in named if one not in row and fits(one, row)]):
            row.append(max(others, key=lambda one: brings(one, row)))
        due -= set(combinations(sorted(row), 2))
        rows.append(tuple(row))
    return rows
