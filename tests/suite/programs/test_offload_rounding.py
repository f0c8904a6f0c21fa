"""Microbatches are compared up to rounding: here, on any processor, the order of a sum depends on the number of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import impls
from conformance.judging.judge import Case
from conformance.judging.verdicts import Diverges, difference
from conformance.programs.offloaded_models import DIFFERENTIATED, SPLIT, SUMS, Written, equals_plain
from conformance.programs.program import Named
from conformance.programs.sums import Order

OFFLOAD = impls.get("offload")


def _summed(OffloadModel: Any, note: Any, device: str, place: str, *, microbatches: int) -> None:  # noqa: N803
    class Summing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(9))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            columns = (x * self.weight).unbind(1)
            total = torch.zeros(len(x), device=x.device)
            for column in columns if len(x) > 4 else columns[::-1]:  # as a kernel for few rows may
                total = total + column
            return total.unsqueeze(1)

    options = {"checkpoint_activation": microbatches > 1, "num_microbatches": microbatches}
    model = OffloadModel([Summing(), torch.nn.Tanh()], place, num_slices=2, **options)
    note("leaves", tuple(model.parameters()))
    y = model(torch.randn(8, 9, device=place))
    note("forward", y)
    y.square().sum().backward()
    note("gradients", [p.grad for p in model.parameters()])


def _case(microbatches: int, implementation: Any = OFFLOAD) -> Case:
    return Case(Written(Named(_summed, (("microbatches", microbatches),), SUMS), away=False), implementation, "cpu")


def test_microbatches_whose_rows_are_added_in_another_order_agree() -> None:
    case = _case(2)
    equals_plain(case)
    assert difference(case.plain.notes["forward"], case.seen.notes["forward"]) is not None  # not to the last bit


def test_one_batch_is_compared_to_the_last_bit() -> None:
    case = _case(1)
    equals_plain(case)
    assert case.terms == 0
    assert difference(case.plain.notes["forward"], case.seen.notes["forward"]) is None


@pytest.mark.parametrize("factor", [1 + 2**-10, 0.5])
def test_a_gradient_that_is_off_by_more_than_rounding_diverges(factor: float) -> None:
    def model(*args: Any, **options: Any) -> torch.nn.Module:
        made = OFFLOAD.subject(*args, **options)
        for parameter in made.parameters():
            parameter.register_hook(lambda grad: grad * factor)
        return made

    with pytest.raises(Diverges, match="gradients"):
        equals_plain(_case(2, replace(OFFLOAD, provides=model)))


@pytest.mark.parametrize("away", [False, True])
def test_where_rows_are_split_or_devices_are_two_is_known_when_a_program_is_built(away: bool) -> None:
    def order(sums: Any, **arguments: int) -> Order:
        return Written(Named(_summed, tuple(arguments.items()), sums), away).sums.order

    assert order(SUMS, microbatches=2) is order(SPLIT, microbatches=1) is Order.ANY
    assert order(SUMS, microbatches=1) is order(SUMS) is Order.SAME
    assert order(DIFFERENTIATED) is (Order.ANY if away else Order.SAME_ON_CPU)
