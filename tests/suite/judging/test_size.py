"""The size of a program is the number of operations in its largest graph, however it is written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.judging.program_size import operations
from conformance.programs.program import Named


def chain(checkpoint: Any, note: Any, device: str, *, length: int, forwards: int) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    for _ in range(forwards):
        y = p
        for _ in range(length):
            y = checkpoint(torch.sin, y)
        y.sum().backward()


def joined(checkpoint: Any, note: Any, device: str) -> None:
    p = torch.randn(2, 2, device=device, requires_grad=True)
    one, other = p.sin(), p.cos().exp()
    other.requires_grad  # noqa: B018 - a look is no operation
    (one.detach() + 1).sin()
    torch.autograd.grad(one * other, p, torch.ones_like(p), create_graph=True)


def modules(checkpoint: Any, note: Any, device: str) -> None:
    layers = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.5), torch.nn.LayerNorm(3))
    layers(torch.randn(4, 2, device=device))


def functions(checkpoint: Any, note: Any, device: str) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x + x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad + grad

    p = torch.randn(2, 2, device=device, requires_grad=True)
    Double.apply(p.sin()).mul_(2)


@pytest.mark.parametrize("forwards", [1, 2])
@pytest.mark.parametrize("length", [0, 1, 4])
def test_forwards_that_share_leaves_alone_are_of_one_size(length: int, forwards: int) -> None:
    assert operations(Named(chain, (("length", length), ("forwards", forwards))), "cpu") == length + 1


def test_what_is_joined_counts_together_and_what_is_apart_does_not() -> None:
    assert operations(Named(joined), "cpu") == 4


def test_a_module_of_torch_is_one_operation() -> None:
    assert operations(Named(modules), "cpu") == 3


def test_an_autograd_function_is_one_operation() -> None:
    assert operations(Named(functions), "cpu") == 3
