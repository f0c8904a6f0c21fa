"""What a fault does to a copy of an implementation: each method of Copy, on two modules of three lines."""

from __future__ import annotations

from types import ModuleType

import pytest

from conformance.mutants.mutant import Copy


class Sum:
    """A number to which others are added."""

    def __init__(self, one: int) -> None:
        self.one = one

    def plus(self, other: int) -> int:
        return self.one + other

    @staticmethod
    def of(one: int, other: int) -> int:
        return one + other


def add(one: int, other: int = 1) -> int:
    return one + other


@pytest.fixture
def parts() -> dict[str, ModuleType]:
    """Two modules with a function of which one has imported it from the other, and a class."""
    made = {name: ModuleType(name) for name in ("there", "here")}
    for each in made.values():
        vars(each).update(add=add, Sum=type("Sum", (), dict(vars(Sum))))
    return made


@pytest.mark.parametrize(
    ("verb", "function", "result"),
    [
        ("call_instead", lambda there, one: there(one) * 10, 20),
        ("change_result", lambda result, one: result * 10 + one, 21),
        ("change_arguments", lambda given: given.update(other=10), 11),
        ("replace", lambda one: one * 10, 10),
    ],
)
def test_what_a_function_does_is_changed_wherever_it_was_imported(
    parts: dict[str, ModuleType], verb: str, function: object, result: int
) -> None:
    getattr(Copy(parts), verb)("there", "add", function)
    assert [each.add(1) for each in parts.values()] == [result, result]


def test_a_function_is_replaced_in_one_module_only_here(parts: dict[str, ModuleType]) -> None:
    Copy(parts).replace("here", "add", lambda one: 0, only_here=True)
    assert [parts["there"].add(1), parts["here"].add(1)] == [2, 0]


def test_something_is_called_before_and_after(parts: dict[str, ModuleType]) -> None:
    calls: list[object] = []
    Copy(parts).call_before("there", "add", lambda *given: calls.append(given))
    Copy(parts).call_after("there", "add", lambda *given: calls.append(given))
    assert parts["there"].add(1, 5) == 6
    assert calls == [(1, 5), (6, 1, 5)]


def test_an_error_is_raised_instead(parts: dict[str, ModuleType]) -> None:
    Copy(parts).raise_instead("there", "Sum.plus", lambda: KeyError("no sum"))
    with pytest.raises(KeyError, match="no sum"):
        parts["there"].Sum(1).plus(2)


def test_attributes_are_set_before_or_after_a_method(parts: dict[str, ModuleType]) -> None:
    Copy(parts).set_before("there", "Sum.plus", one=lambda self: self.one * 10)
    Copy(parts).set_after("there", "Sum.plus", one=lambda self: self.one + 5)
    made = parts["there"].Sum(1)
    assert (made.plus(2), made.one) == (12, 15)


def test_a_static_method_stays_one(parts: dict[str, ModuleType]) -> None:
    Copy(parts).change_result("there", "Sum.of", lambda result, *_: -result)
    assert parts["there"].Sum(1).of(1, 2) == -3
