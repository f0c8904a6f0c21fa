"""When gradients are taken for those of plain."""

from __future__ import annotations

import pytest
import torch

from benches.compare.measurement import agreement, close


def test_close_is_enough_where_the_expected_gradients_do_not_repeat() -> None:
    one, other = [torch.ones(3)], [torch.ones(3) + 1e-6]
    assert (agreement(one, one, True), agreement(other, one, True)) == ("equal", "differ")
    assert (agreement(other, one, False), agreement([torch.zeros(3)], one, False)) == ("close", "differ")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_neither_zeros_nor_twice_as_much_is_close_in_any_dtype(dtype: torch.dtype) -> None:
    one = torch.linspace(-1, 1, 5).to(dtype)
    assert close(one * (1 + 2 * torch.finfo(dtype).eps), one)
    assert not close(torch.zeros_like(one), one)
    assert not close(one * 2, one)
