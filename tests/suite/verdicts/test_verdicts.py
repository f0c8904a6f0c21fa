"""How a verdict is reached: the classification of errors, and the comparison of what was noted."""

from __future__ import annotations

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from conformance.judging.refusals import CAPTURE, TYPES
from conformance.judging.verdicts import Diverges, Hangs, Judged, Verdict, difference, freeze, from_error
from conformance.meters.interruptions import Timeout

INF, NAN = math.inf, math.nan
T = torch.tensor


class Impossible(NotImplementedError):
    """An error type of an implementation's own."""


@dataclass
class Box:
    """A container that freeze knows by its fields."""

    value: Any


Pair = namedtuple("Pair", "left right")


@pytest.mark.parametrize("kind", [RuntimeError, TypeError, ValueError, NotImplementedError, Impossible])
def test_an_error_of_a_refusing_type_that_names_an_operation_refuses(kind: type[Exception]) -> None:
    judged = from_error(kind("autograd.grad is not supported; call backward"))
    assert judged.verdict is Verdict.REFUSES
    assert judged.detail == f"{kind.__name__}: autograd.grad is not supported; call backward"


NAMELESS = ["", " ", "\n", "unsupported", "this cannot be done here; do something else", "x INTERNAL ASSERT FAILED at y"]


@pytest.mark.parametrize("message", NAMELESS)
def test_an_error_that_names_nothing_is_a_crash(message: str) -> None:
    assert from_error(RuntimeError(message)).verdict is Verdict.CRASHES


def test_a_crash_says_why_it_is_no_refusal() -> None:
    told = "TypeError: no\nNo refusal: its message has none of the names list, tuple"
    assert from_error(TypeError("no"), {"tuple", "list"}).detail == told
    of_an_operator = from_error(TypeError("no tuple"), {"tuple"}, of_an_operator=True)
    assert of_an_operator.verdict is Verdict.CRASHES
    assert of_an_operator.detail.endswith("No refusal: it came out of an operator that the program called")


NOTHING: Any = None


def _throw(error: Exception) -> None:
    raise error


class InternalTorchDynamoError(RuntimeError):
    """What the compiler calls its own faults."""


def _wrong_context() -> None:
    variable: ContextVar[int] = ContextVar("variable")
    variable.reset(copy_context().run(variable.set, 1))


@pytest.mark.parametrize(
    "fault",
    [
        lambda: list(NOTHING),
        lambda: NOTHING[0],
        lambda: NOTHING(),
        _wrong_context,
        functools.partial(_throw, InternalTorchDynamoError("checkpoint not implemented for a variable")),
    ],
)
def test_a_fault_inside_is_a_crash_whatever_its_type(fault: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        fault()
    assert from_error(caught.value).verdict is Verdict.CRASHES


@pytest.mark.parametrize(
    "code", ["an illegal memory access was encountered", "operation not permitted when stream is capturing"]
)
def test_an_error_of_the_runtime_of_cuda_is_a_crash(code: str) -> None:
    assert from_error(RuntimeError(f"CUDA error: {code}"), CAPTURE).verdict is Verdict.CRASHES
    assert from_error(torch.AcceleratorError(f"a graph is captured: {code}"), CAPTURE).verdict is Verdict.CRASHES
    assert from_error(RuntimeError(f"a region cannot be captured: {code}"), CAPTURE).verdict is Verdict.REFUSES


def test_an_error_that_names_the_type_of_none_refuses() -> None:
    assert from_error(TypeError("argument 0 is of type NoneType; it must be a tensor"), TYPES).verdict is Verdict.REFUSES


@pytest.mark.parametrize(
    "kind", [KeyError, AttributeError, AssertionError, IndexError, RecursionError, Exception, KeyboardInterrupt]
)
def test_an_error_of_another_type_is_a_crash(kind: type[BaseException]) -> None:
    assert from_error(kind("a message of five words")).verdict is Verdict.CRASHES


def test_only_the_first_line_of_a_message_is_the_detail() -> None:
    assert from_error(RuntimeError("recomputation differs from forward\nand a traceback")).detail.endswith("from forward")


def test_a_timeout_is_a_hang() -> None:
    assert isinstance(from_error(Timeout()), Hangs)


def test_neither_verdicts_nor_timeouts_are_what_an_implementation_catches() -> None:
    assert not issubclass(Timeout, Exception)
    assert not issubclass(Judged, RuntimeError)


def test_verdicts_are_ordered_by_severity_and_rank() -> None:
    order = [Verdict.AGREES, Verdict.REFUSES, Verdict.CRASHES, Verdict.HANGS, Verdict.DIVERGES]
    assert [verdict.severity for verdict in order] == sorted(verdict.severity for verdict in order)
    assert [verdict.rank for verdict in order] == [0, 1, 2, 2, 2]
    assert Diverges("detail").verdict == "diverges"


def differ(one: Any, other: Any, terms: int = 0) -> str | None:
    found = difference(freeze(one), freeze(other), "note", terms=terms)
    return found.told() if found else None


SAME = [
    None, 3, "text", torch.float32, T([1.0, NAN, INF]), T([0.0, -0.0]), T([1 + 2j, complex(0, NAN)]), T([True, False]),
    T([1, 2]),
    torch.empty(0, 3), T([1.0], requires_grad=True), [T(1.0), (None, {"a": T(2)})], Pair(1, T(2.0)), Box([T(1.0)]),
    T([[1.0, 0.0], [0.0, 2.0]]).to_sparse(), (), [],
]  # fmt: skip


@pytest.mark.parametrize("value", SAME, ids=str)
@pytest.mark.parametrize("terms", [0, 16])
def test_a_value_does_not_differ_from_itself(value: Any, terms: int) -> None:
    assert differ(value, value, terms) is None


DIFFERENT = {
    "value": (T([1.0, 2.0]), T([1.0, 2.5])),
    "dtype": (T([1.0]), T([1.0], dtype=torch.float64)),
    "shape": (torch.ones(2, 1), torch.ones(1, 2)),
    "shape that broadcasts": (torch.ones(2), torch.ones(1)),
    "requires_grad": (T([1.0]), T([1.0], requires_grad=True)),
    "tensor type": (T([1.0]), torch.nn.Parameter(T([1.0]), requires_grad=False)),
    "layout": (torch.eye(2), torch.eye(2).to_sparse()),
    "layout the other way": (torch.eye(2).to_sparse(), torch.eye(2)),
    "None where a tensor is": (T([0.0]), None),
    "a tensor where None is": (None, T([0.0])),
    "a number where a tensor is": (T(1.0), 1.0),
    "NaN where a number is": (T([1.0, NAN]), T([1.0, 2.0])),
    "a number where NaN is": (T([1.0, 2.0]), T([1.0, NAN])),
    "the sign of infinity": (T([INF, 1.0]), T([-INF, 1.0])),
    "a number beside infinity": (T([INF, 1.0]), T([INF, 2.0])),
    "a number beside NaN": (T([NAN, 1.0]), T([NAN, 2.0])),
    "an imaginary part": (T([1 + 2j]), T([1 - 2j])),
    "an integer": (T([1, 2]), T([1, 3])),
    "a truth value": (T([True]), T([False])),
    "list and tuple": ([T(1.0)], (T(1.0),)),
    "tuple and namedtuple": ((1, T(2.0)), Pair(1, T(2.0))),
    "dataclass and dict": (Box(T(1.0)), {"value": T(1.0)}),
    "key": ({"a": T(1.0)}, {"b": T(1.0)}),
    "order of keys": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "one more": ([torch.ones(2)], [torch.ones(2), torch.ones(2)]),
    "one less": ([torch.ones(2), torch.ones(2)], [torch.ones(2)]),
    "nothing": ([torch.ones(2)], []),
    "bool and int": (True, 1),
    "int and float": (1, 1.0),
    "text": ("a", "b"),
    "deep inside": ({"a": [Box((T(1.0), T([2.0, 3.0])))]}, {"a": [Box((T(1.0), T([2.0, 4.0])))]}),
}


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT.keys())
@pytest.mark.parametrize("terms", [0, 16])
def test_a_difference_is_found_and_located(pair: tuple[Any, Any], terms: int) -> None:
    found = differ(*pair, terms)
    assert found is not None
    assert found.startswith("note")


def test_the_path_leads_to_the_difference() -> None:
    found = differ([1, (2, T([1.0]))], [1, (2, T([3.0]))])
    assert found is not None
    assert found.startswith("note[1][1][1][1]:")
    assert "[1.0]" in found
    assert "[3.0]" in found


ULP = torch.finfo(torch.float64).eps


@pytest.mark.parametrize(
    ("one", "other"),
    [([1.0], [1.0 + ULP]), ([0.0], [-0.0]), ([1.0, INF], [1.0 + ULP, INF]), ([1.0, NAN], [1.0 + ULP, NAN])],
)
def test_what_the_order_of_a_sum_changes_counts_only_where_there_is_one(one: list[float], other: list[float]) -> None:
    first, second = T(one, dtype=torch.float64), T(other, dtype=torch.float64)
    assert differ(first, second) is not None
    assert differ(first, second, terms=4) is None


def test_the_bound_follows_the_dtype_the_terms_and_the_largest_entry() -> None:
    fine, coarse = T([1.0, 1e-3], dtype=torch.float64), T([1.0, 1e-3], dtype=torch.bfloat16)
    assert differ(fine, fine + 1e-6, terms=16) is not None
    assert differ(coarse, coarse + T([0.0, 1e-2], dtype=torch.bfloat16), terms=16) is None
    assert differ(fine, fine + T([0.0, 8 * ULP], dtype=torch.float64), terms=16) is None
    assert differ(fine, fine + T([0.0, 8 * ULP], dtype=torch.float64), terms=4) is not None


def test_a_frozen_value_does_not_follow_later_changes() -> None:
    value = [torch.ones(2)]
    before = freeze(value)
    value[0].mul_(2)
    value.append(torch.ones(1))
    assert difference(before, freeze([torch.ones(2)])) is None


METHODS = "__eq__ eq isnan signbit logical_or logical_and all clone detach to_dense"
METHODS += " le abs sub max nan_to_num resolve_conj __or__ __and__"


@pytest.mark.parametrize("place", [torch.Tensor, torch])
@pytest.mark.parametrize("kind", ["float64", "complex64", "sparse", "csr"])
@pytest.mark.parametrize("terms", [0, 16])
def test_what_an_implementation_makes_of_tensors_decides_nothing(
    monkeypatch: pytest.MonkeyPatch, place: Any, kind: str, terms: int
) -> None:
    right = torch.eye(2, dtype=torch.complex64 if kind == "complex64" else torch.float64)
    right = right.to_sparse() if kind == "sparse" else right.to_sparse_csr() if kind == "csr" else right
    wrong = right * 2
    same = right * 1
    always = torch.ones(2, 2, dtype=torch.bool)
    for name in METHODS.split():
        if hasattr(place, name):
            monkeypatch.setattr(place, name, lambda *args, **kwargs: always)
    found, none = (difference(freeze(right), freeze(other), terms=terms) for other in (wrong, same))
    monkeypatch.undo()
    assert found is not None
    assert none is None
