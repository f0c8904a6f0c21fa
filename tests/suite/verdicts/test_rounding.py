"""What is known of a program's sums: when two runs are the same to the last bit, and what rounding may change where not."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
import torch

from conformance.judging.explorer import Explorer
from conformance.judging.judge import Case, judge
from conformance.judging.law import PROFILES, Law, all_laws
from conformance.judging.process_state import isolated
from conformance.judging.references import REFERENCES
from conformance.judging.verdicts import Verdict
from conformance.programs.program import Named, load
from conformance.programs.sums import Comparable, Order, Sums, rounding, terms_in_any_order
from conformance.simulated_device.device import second
from impls import Implementation, get
from impls.nested import checkpoint as nested
from tests.support.rounding_meter import RoundingMeter
from tests.support.single_cases import TWICE, equal

EXACT = Implementation("fake", nested, capabilities=frozenset({"exact-sums"}))


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "sim"])
@pytest.mark.parametrize("order", Order)
def test_gradients_of_gradients_are_exact_on_the_cpu_alone(device: str, order: Order) -> None:
    exact = order is Order.SAME or (order is Order.SAME_ON_CPU and device == "cpu")
    program = Named(TWICE.function, sums=Sums(7, order))
    assert Case(program, EXACT, device).terms == (0 if exact else 7)


def test_an_implementation_that_does_not_claim_it_is_compared_up_to_rounding() -> None:
    other = Implementation("other", nested)
    assert terms_in_any_order(TWICE, EXACT, "cpu") == 0
    assert terms_in_any_order(TWICE, other, "cpu") == TWICE.sums.terms
    assert terms_in_any_order(TWICE, get("graph"), "cpu") == 0


def test_on_a_second_device_gradients_of_gradients_come_in_any_order() -> None:
    assert [order.away for order in Order] == [Order.SAME, Order.ANY, Order.ANY]
    assert Order.SAME.and_of(Order.SAME_ON_CPU) is Order.SAME_ON_CPU
    assert Order.ANY.and_of(Order.SAME) is Order.ANY


@pytest.mark.parametrize("terms", [0, -1])
def test_a_program_has_terms(terms: int) -> None:
    with pytest.raises(ValueError, match=f"terms is {terms}; it must be 1 at least"):
        Sums(terms)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_sums_in_all_orders_are_within_the_bound(dtype: torch.dtype) -> None:
    terms = [1.0, 0.3, -1.7, 1e-3, 0.9, -0.47]
    sums = []
    for order in permutations(torch.tensor(terms, dtype=dtype).unbind()):
        total = torch.zeros((), dtype=dtype)
        for term in order:
            total = total + term
        sums.append(Fraction(float(total)))
    magnitude = sum(abs(Fraction(float(term))) for term in torch.tensor(terms, dtype=dtype))
    assert 0 < max(sums) - min(sums) <= rounding(dtype, len(terms)) * magnitude


def test_the_bound_is_twice_gamma_and_grows_with_the_terms() -> None:
    unit = torch.finfo(torch.float32).eps / 2
    assert rounding(torch.float32, 0) == 0
    assert rounding(torch.float32, 10) == 2 * 10 * unit / (1 - 10 * unit)
    assert rounding(torch.bfloat16, 255) < rounding(torch.bfloat16, 256) == math.inf


def _halves(checkpoint: Any, note: Any, device: str, *, wrong: bool) -> None:
    p = torch.randn(7, dtype=torch.float32, device=device, requires_grad=True)
    note("leaves", (p,))

    def f(h: torch.Tensor) -> torch.Tensor:
        parts = h.flip(0).cumsum(0)[-1:] if calls else h.cumsum(0)[-1:]  # the same terms in another order
        calls.append(None)
        return (parts * (1.001 if wrong and len(calls) > 1 else 1)).square()

    calls: list[None] = []
    y = checkpoint(f, p)
    note("forward", y)
    y.sum().backward()
    note("gradients", [p.grad])


@pytest.mark.parametrize(("terms", "wrong", "verdict"), [(32, False, "agrees"), (32, True, "diverges"), (0, True, "diverges")])
def test_a_recomputation_that_adds_in_another_order_is_told_from_one_that_is_wrong(
    terms: int, wrong: bool, verdict: str
) -> None:
    sums = Sums(terms, Order.ANY) if terms else Sums()
    program = Named(_halves, (("wrong", wrong),), sums)
    assert judge(equal, Case(program, EXACT, "cpu"), recomputes=True, gradients=True).verdict == verdict


def _low(checkpoint: Any, note: Any, device: str) -> None:
    p = torch.ones(2, dtype=torch.bfloat16, device=device, requires_grad=True)
    note("leaves", (p,))
    checkpoint(torch.sin, p).sum().backward()
    note("gradients", [p.grad])


def test_a_bound_that_is_as_large_as_the_gradients_proves_nothing() -> None:
    cases = [Case(Named(_low, (), Sums(terms, Order.ANY)), EXACT, "cpu") for terms in (16, 200)]
    found = [judge(equal, one, recomputes=True, gradients=True) for one in cases]
    assert [one.verdict for one in found] == [Verdict.AGREES] * 2
    assert [one.vacuous for one in found] == ["", "rounding alone may change half of a gradient, of 200 terms"]


EXPLORER = Explorer("cpu", replace(PROFILES["quick"], cases=4), 0)
ORIGINALS = {"checkpoint": "nested", "graph": "graph", "offload": "offload"}


def _longest(program: Comparable, law: Law) -> int:
    with isolated("cpu"), RoundingMeter() as meter, suppress(Exception):  # what a program does up to its error counts
        load(program)(REFERENCES[law.kind], lambda label, value=None: None, "cpu")
    return meter.most


@pytest.mark.parametrize("law", [law for law in all_laws().values() if not law.lacks("cpu")], ids=lambda law: law.name)
def test_programs_say_of_how_many_terms_their_sums_are(law: Law) -> None:
    second("cpu")
    for program in EXPLORER.programs(law, get(ORIGINALS[law.kind])):
        if law.kind != "checkpoint" and program.sums.order is Order.SAME:
            continue  # they are compared bit for bit everywhere
        said, found = program.sums.terms, _longest(program, law)
        assert said >= found, f"{found} roundings on the longest way, {said} are said:\n{program.source}"
