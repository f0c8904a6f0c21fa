"""reprise check: jagged, nested and quantized tensors are compared, and so are whole numbers and NaN that look the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from impls import Implementation
from reprise.model_check.checking import check
from reprise.model_check.tensors.tensor_difference import difference, is_equal
from tests.support.checked_models import built


def own(function: Callable[..., Any]) -> Implementation:
    return Implementation("own", kind="checkpoint", summary="x", source="x", declared=False, checkpoint=function)


class Rows(nn.Module):
    """Two regions that are passed rows of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        rows = x.values() if x.layout == torch.jagged else torch.nested.to_padded_tensor(x, 0.0)
        return rows.square().mean()


@pytest.mark.parametrize("is_leaf", [False, True])
@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_rows_of_different_lengths_are_compared(layout: torch.layout, is_leaf: bool) -> None:
    def build() -> Any:
        rows = torch.nested.nested_tensor([torch.randn(n, 8) for n in (3, 5)], layout=layout, requires_grad=is_leaf)
        return Rows(), lambda model: model(rows)

    def wrong(function: Any, x: torch.Tensor) -> Any:
        return function(x) * 1.5

    assert check(build, impl="nested", explain=True).agrees
    report = check(build, impl=own(wrong), steps=1, explain=True)
    (result,) = report.results
    assert report.spread.agrees
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert len(result.comparison.gradients.differing) == 4 + is_leaf


def quantized(*values: float) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.tensor(values), 0.1, 0, torch.quint8)


def nested(*values: float) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.tensor(values), torch.tensor(values[:1])])


@pytest.mark.parametrize("make", [quantized, nested])
def test_buffers_of_other_kinds_are_compared(make: Callable[..., torch.Tensor]) -> None:
    def replaced(self: Any, x: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        self.count = make(1.0, float(self.calls))
        return x

    def build(after: Any) -> Any:
        model, x = built(after)()
        model.layers[1].register_buffer("count", make(1.0, 2.0))
        return model, x

    assert check(lambda: build(lambda _, x: x), impl="nested", steps=1).agrees
    (result,) = check(lambda: build(replaced), impl="torch-nonreentrant-full", steps=1).results
    assert result.verdict == "diverges"
    assert result.comparison is not None
    assert [one.name for one in result.comparison.buffers.differing] == ["layers.1.count"]


def test_values_that_no_double_tells_apart_differ() -> None:
    found = difference("one", torch.tensor([2**60, 5]), torch.tensor([2**60 + 3, 5]))
    assert found is not None
    assert found.absolute == 3
    nan = torch.tensor([0x7FC00000, 0x3F800000], dtype=torch.int32).view(torch.float32)
    other = torch.tensor([0x7FC00001, 0x3F800000], dtype=torch.int32).view(torch.float32)
    found = difference("one", nan, other)
    assert found is not None
    assert (found.reason, found.units) == ("has other bits in values that are NaN in both", None)
    eighths = [torch.tensor([float("nan"), one]).to(torch.float8_e4m3fn) for one in (1.0, 4.0)]
    found = difference("one", eighths[0], eighths[1])
    assert found is not None
    assert found.absolute == 3
    assert not is_equal(eighths[0], eighths[1])
    assert is_equal(torch.nested.nested_tensor([]), torch.nested.nested_tensor([]))
    rows = torch.randn(2, 4, 3)
    starts, lengths = torch.tensor([0, 1]), [torch.tensor(one) for one in ([1, 2], [2, 2])]
    short, long = (torch.nested.narrow(rows, 1, starts, one, layout=torch.jagged) for one in lengths)
    found = difference("one", short, long)
    assert found is not None
    assert found.reason == "has rows of other lengths than plain's"
    changed = rows.clone()
    changed[0, 3] = 9  # belongs to no row
    assert is_equal(short, torch.nested.narrow(changed, 1, starts, lengths[0], layout=torch.jagged))
    one, other = (
        torch.nested.narrow(some, 1, starts, lengths[0], layout=torch.jagged).transpose(1, 2) for some in (rows, -rows)
    )
    assert not is_equal(one, other)
    assert is_equal(one, torch.nested.narrow(changed, 1, starts, lengths[0], layout=torch.jagged).transpose(1, 2))
    assert is_equal(nan, nan.clone())
    assert not is_equal(quantized(1.0), quantized(2.0))
