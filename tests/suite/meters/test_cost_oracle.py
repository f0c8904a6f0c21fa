"""The cost oracle gives the figures of the literature, and what runs costs what it says."""

from __future__ import annotations

import functools
from unittest import mock

import pytest
import torch

import impls
from conformance.costs.cost_oracle import Costs, costs
from conformance.judging.judge import execute
from conformance.meters import meter
from conformance.programs.backward_calls import Request
from conformance.programs.program import Leaf, Line, Op, Program, Region, Statement, gradients

LEAF = Leaf("x0", "torch.randn(2, device=device, requires_grad=True)", True)


def layers(first: int, last: int) -> list[Statement]:
    """Layers that save exactly their input: layer i makes x(i + 1) of x(i)."""
    return [Op(f"x{i + 1}", "torch.sin({0})", (f"x{i}",), 5) for i in range(first, last)]


def region(first: int, last: int, body: list[Statement]) -> Region:
    """The layers from first to last as a checkpointed region."""
    given, result = f"x{first}", f"x{last}"
    name = f"f{first}_{last}"
    return Region(name, (given,), (), given, (given,), tuple(body), result, (result,), ((result, ""),))


def program(count: int, body: list[Statement]) -> Program:
    """The layers in a program with one backward."""
    end = f"x{count}"
    return Program((LEAF,), tuple(body), (end,), (Request((end,)), gradients("0", [LEAF])))


def sequential(count: int, segments: int) -> Program:
    """checkpoint_sequential: all segments but the last are regions."""
    size = count // segments
    parts: list[Statement] = [region(i, i + size, layers(i, i + size)) for i in range(0, count - size, size)]
    return program(count, [*parts, *layers(count - size, count)])


def halves(first: int, last: int, right: bool) -> list[Statement]:
    """Binary nesting down to single layers; ``right`` says whether right halves are regions as well."""
    if last - first == 1:
        return layers(first, last)
    middle = (first + last) // 2
    left = region(first, middle, halves(first, middle, right))
    rest = halves(middle, last, right)
    return [left, region(middle, last, rest)] if right else [left, *rest]


def executed(program: Program, implementation: str, early_stop: bool) -> tuple[int, int, dict[str, int]]:
    """Layers called, kernels run and calls of every region, when the program really runs."""
    kernels = meter.Kernels({"sin"})
    checkpoint = functools.partial(impls.get(implementation).checkpoint, early_stop=early_stop)
    layer = mock.Mock(wraps=torch.sin, __name__="sin")
    with mock.patch.object(torch, "sin", layer), mock.patch.object(meter, "CALLS_PER_CASE", 5000):
        seen = execute(program, checkpoint, "cpu", [kernels])
    assert seen.error is None
    return layer.call_count, kernels.counts["sin"], dict(seen.calls)


def predicted(costs: Costs) -> tuple[int, int, dict[str, int]]:
    return costs.begun["sin"], costs.kernels["sin"], dict(costs.calls)


CLAIMS = [
    # Chen et al. 2016: n + n(k - 1)/k calls, n + (k - 1)(n/k - 1) kernels.
    pytest.param(sequential(64, 2), True, 96, 95, id="sequential, 2 segments"),
    pytest.param(sequential(64, 8), True, 120, 113, id="sequential, 8 segments"),
    pytest.param(sequential(64, 8), False, 120, 120, id="sequential, 8 segments, no early stop"),
    # PyTorch pull request 90105: n(log n + 1) calls; with early stop n(log n / 2 + 3/2) and n(log n / 2 + 1/2) kernels.
    pytest.param(program(64, halves(0, 64, True)), False, 448, 448, id="binary, no early stop"),
    pytest.param(program(64, halves(0, 64, True)), True, 288, 224, id="binary"),
    # Only left halves are regions: n(log n / 2 + 1) calls without early stop, (n / 2) log n + 1 kernels with it.
    pytest.param(program(64, halves(0, 64, False)), False, 256, 256, id="left halves, no early stop"),
    pytest.param(program(64, halves(0, 64, False)), True, 256, 193, id="left halves"),
]


@pytest.mark.parametrize(("claimed", "early_stop", "calls", "kernels"), CLAIMS)
def test_the_oracle_gives_the_claimed_figures(claimed: Program, early_stop: bool, calls: int, kernels: int) -> None:
    expected = costs(claimed, early_stop)
    assert (expected.begun["sin"], expected.kernels["sin"]) == (calls, kernels)


@pytest.mark.parametrize("implementation", ["nested", "torch-nonreentrant"])
@pytest.mark.parametrize(("claimed", "early_stop"), [pytest.param(*one.values[:2], id=one.id) for one in CLAIMS])
def test_what_runs_costs_what_the_oracle_says(implementation: str, claimed: Program, early_stop: bool) -> None:
    assert executed(claimed, implementation, early_stop) == predicted(costs(claimed, early_stop))


def test_each_region_saves_what_is_its_own() -> None:
    inner = region(1, 2, layers(1, 2))
    saved = costs(program(3, [region(0, 3, [*layers(0, 1), inner, *layers(2, 3)])])).saved
    assert saved == {"": ("x0",), "f0_3": ("x0", "x1", "x2"), "f1_2": ("x1",)}


def test_an_input_that_is_passed_twice_is_saved_once() -> None:
    body = (Op("h", "{0} * {1}", ("a", "b"), 5),)
    twice = Region("f", ("a", "b"), (), "x0, x0", ("x0", "x0"), body, "h", ("h",), (("x1", ""),))
    assert costs(program(1, [twice])).saved == {"": ("x0",), "f": ("a", "b")}


def test_recomputed_tensors_die_one_by_one() -> None:
    assert costs(program(4, [region(0, 4, layers(0, 4))])).alive == (("x4", 1), ("x3", 3), ("x2", 2), ("x1", 1))


def test_a_second_backward_recomputes_once_more() -> None:
    once = program(2, [region(0, 2, layers(0, 2))])
    driver = (Request(("x2",), retain=True), *once.driver)
    twice = Program(once.leaves, once.body, once.outputs, driver)
    assert (costs(once).calls["f0_2"], costs(twice).calls["f0_2"]) == (2, 3)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        pytest.param(Op("x1", "torch.exp({0})", ("x0",), 5), "no costs of 'torch.exp", id="operator"),
        pytest.param(region(0, 1, [Op("y", "torch.sin({0})", ("z",), 5)]), "through a closure", id="closure"),
    ],
)
def test_what_the_oracle_does_not_know_is_refused(statement: Statement, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        costs(program(1, [Op("z", "torch.sin({0})", ("x0",), 5), Line("pass"), statement]))
