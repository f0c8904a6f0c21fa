"""Every operator of torch that has a gradient, with the samples of its arguments that PyTorch tests it with."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st

from conformance.judging import law as laws
from conformance.judging.judge import Case
from conformance.programs import operator_database as database
from conformance.programs.operator_database import Category
from conformance.programs.program import Named
from conformance.rows.for_readers import for_readers
from impls import Implementation

Names = Callable[[], tuple[str, ...]]

# Operators that one implementation or another was wrong for, or that save in a way of their own. They are drawn more often.
NOTABLE = (
    "nn.functional.rrelu", "nn.functional.dropout", "nn.functional.scaled_dot_product_attention", "nn.functional.layer_norm",
    "nn.functional.batch_norm", "nn.functional.embedding", "nn.functional.max_pool1d", "linalg.svd", "stack", "where",
)  # fmt: skip


def one_of(items: Sequence[Any]) -> st.SearchStrategy[Any]:
    """One of many, drawn in two steps.

    In a range of more than 100 numbers Hypothesis draws some that it has read in the source of modules that are loaded, so
    the programs of a seed would depend on these.
    """
    return st.sampled_from([items[start : start + 100] for start in range(0, len(items), 100)]).flatmap(st.sampled_from)


def _claimed(place: str, claims: Implementation) -> frozenset[str]:
    """What samples at a place may need: alone in a region, what an implementation claims; inside a function, anything."""
    return claims.capabilities if place == "alone" else database.NEEDS


@st.composite
def calls(draw: Any, place: str, category: Category, operators: Names, claims: Implementation) -> Named:
    """Programs that call an operator at a place in a region, of those whose samples are of a category."""
    there = operators()
    notable = [name for name in NOTABLE if name in there]
    operator = draw(st.sampled_from(notable) | one_of(there) if notable else one_of(there))
    dtype = draw(st.sampled_from(database.dtypes(operator)))
    number = draw(one_of(range(database.count(operator, dtype))))
    sample = database.sample_from(operator, dtype, number, category, _claimed(place, claims))
    if sample is None:  # a few operators have none that can be compared, or alone none that is claimed
        reject()
    return database.program(sample, place)


def every(place: str, category: Category, operators: Names, claims: Implementation) -> Iterator[Named]:
    """All programs that can be drawn."""
    claimed = _claimed(place, claims)
    for operator in operators():
        for one in itertools.chain.from_iterable(database.samples(operator, dtype) for dtype in database.dtypes(operator)):
            if one.category is category and one.needs <= claimed:
                yield database.program(one, place)


def law(
    places: tuple[str, ...],
    category: Category = Category.DIFFERENTIABLE,
    operators: Names = database.names,
    **kwargs: Any,
) -> Callable[[Callable[[Case], None]], Callable[..., None]]:
    """A law about operators at one of these places in a region."""

    def drawn(claims: Implementation) -> st.SearchStrategy[Named]:
        return st.one_of([calls(place, category, operators, claims) for place in places])

    def complete(claims: Implementation) -> Iterator[Named]:
        return itertools.chain.from_iterable(every(place, category, operators, claims) for place in places)

    return laws.law(drawn, every=complete, packages=database.PACKAGES, devices=["cpu"], **kwargs)


@for_readers("everyday", "wrong gradient", "OpInfo, convolution, attention, softmax")
@law(("first",), floor=10, effort=2)
def test_operators_that_a_region_begins_with(case: Case) -> None:
    """Whatever operator a region begins with, its outputs and gradients are plain's to the last bit."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "OpInfo, convolution, attention, softmax")
@law(("last",), floor=10, effort=2)
def test_operators_that_a_region_ends_with(case: Case) -> None:
    """Whatever operator a region ends with, its outputs and gradients are plain's to the last bit."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "OpInfo, convolution, attention, softmax")
@law(("alone",), floor=10, effort=2)
def test_operators_with_all_their_arguments(case: Case) -> None:
    """An operator that is a region by itself, with its arguments as they are, has plain's outputs and gradients."""
    case.equals_plain()


@for_readers("everyday", "wrong gradient", "BatchNorm, running statistics, out=")
@law(("first", "last"), Category.WRITES, database.writing, floor=4, effort=0.5)
def test_operators_that_write_to_their_arguments(case: Case) -> None:
    """An operator that writes to its arguments, as batch norm to its statistics, has plain's gradients or is refused."""
    case.equals_plain_or_refuses()
