"""The operators of drawn programs are what their records say."""

from __future__ import annotations

import itertools

import pytest
import torch

from conformance.costs.forward_trace import SAVING_CONSTANTS
from conformance.laws.test_changes import SAVING
from conformance.laws.test_rng import DISTRIBUTIONS
from conformance.programs.generator.containers import DEFINITIONS
from conformance.programs.generator.layers import FUNCTIONS
from conformance.programs.generator.operators import (
    BINARY,
    CONJUGATES,
    DTYPES,
    OPERATORS,
    SAVE_MANY,
    SAVED_LAST,
    UNARY,
    Operator,
)
from tests.support.rounding_meter import RoundingMeter

COUNTED = (*UNARY, *BINARY, *CONJUGATES, *itertools.chain(*OPERATORS.values()), *FUNCTIONS, SAVE_MANY)
ALL = dict.fromkeys((*COUNTED, *itertools.chain(*SAVED_LAST.values()), *SAVING_CONSTANTS, *SAVING, *DISTRIBUTIONS))


def computed(operator: Operator, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    names = {"torch": torch, "device": "cpu", "x": x, "y": y}
    exec("\n".join(DEFINITIONS.values()), names)
    return eval(operator.template.format("x", "y"), names)


def leaf(rows: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(rows, rows, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("rows", [2, 3])
@pytest.mark.parametrize("operator", ALL, ids=lambda operator: operator.template)
def test_an_operator_has_no_more_roundings_than_it_says(operator: Operator, rows: int) -> None:
    x, y = leaf(rows), leaf(rows)
    with RoundingMeter() as meter:
        result = computed(operator, x.clone(), y.detach() if operator not in COUNTED else y)
        torch.autograd.backward(result, torch.ones_like(result))
    assert meter.most <= operator.roundings(rows)


@pytest.mark.parametrize("operator", [*UNARY, *BINARY], ids=lambda operator: operator.template)
def test_an_operator_saves_what_it_says(operator: Operator) -> None:
    x, y = leaf(2), leaf(2)
    saved: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(saved.append, lambda _: x):
        computed(operator, x, y)
    read = [x, y] if operator.reads_another else [x]
    said = {"nothing": saved == [], "what it reads": {*map(id, saved)} == {*map(id, read)}, None: bool(saved)}
    assert said[operator.saves]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("operator", COUNTED, ids=lambda operator: operator.template)
def test_an_operator_lacks_kernels_for_the_dtypes_that_it_says(operator: Operator, dtype: str) -> None:
    x, y = (leaf(3, getattr(torch, DTYPES[dtype].removeprefix("torch."))) for _ in range(2))
    try:
        result = computed(operator, x.clone(), y)
        torch.autograd.backward(result, torch.ones_like(result))
    except (RuntimeError, NotImplementedError):
        assert dtype in operator.lacking
    else:
        assert dtype not in operator.lacking
