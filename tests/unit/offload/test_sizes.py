"""The size of a tensor, which pytree would make a tuple of, is handed on as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import impls
from impls.offload import OffloadModel


@pytest.mark.parametrize("inside", [False, True])
def test_nested_is_recomputed_with_a_size(inside: bool) -> None:
    def function(x: torch.Tensor, size: Any) -> torch.Tensor:
        return (x * (size[0] if inside else size).numel()).sin()

    p = torch.linspace(0.1, 1.4, 4, requires_grad=True)
    impls.get("nested").checkpoint(function, p, [p.shape] if inside else p.shape).sum().backward()
    assert p.grad is not None
    torch.testing.assert_close(p.grad, 4 * (4 * p.detach()).cos())


class Sized(torch.nn.Module):
    """Reads the size that it is given, and hands it on."""

    def forward(self, given: Any) -> Any:
        x, size = given
        return (x * size.numel()).sin(), size


@pytest.mark.parametrize(("checkpointed", "microbatches"), [(False, 1), (True, 1), (True, 2)])
def test_slices_hand_a_size_on(checkpointed: bool, microbatches: int) -> None:
    p, size = torch.linspace(0.1, 1.4, 4, requires_grad=True), torch.Size([2, 3])
    options: dict[str, Any] = {"checkpoint_activation": checkpointed, "num_microbatches": microbatches}
    y, same = OffloadModel([Sized(), Sized()], "cpu", num_slices=2, **options)((p, size))
    assert type(same) is torch.Size
    (expected,) = torch.autograd.grad((6 * (6 * p).sin()).sin().sum(), p)
    y.sum().backward()
    torch.testing.assert_close(p.grad, expected)
