"""A layer that is split over ranks computes what the whole layer does, so that its bytes are those of the right program."""

from __future__ import annotations

import pytest
import torch

from benches.papers.models.transformer_layer import Shape, Technique, layer, split, weights

SHAPE = Shape(s=16, b=2, h=32, a=4)


def gradients(technique: Technique) -> tuple[torch.Tensor, ...]:
    """Output, the input's gradient, and those of two weights that are split, put together again."""
    ranks = split(weights(SHAPE, dtype=torch.float64, device="cpu"), technique.ranks)
    whole = torch.randn(SHAPE.s, SHAPE.b, SHAPE.h, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    parts = whole.chunk(technique.ranks) if technique.sequence else [whole] * technique.ranks
    inputs = [part.clone().requires_grad_() for part in parts]
    outputs = layer(inputs, ranks, SHAPE, technique)
    torch.autograd.backward(outputs, [output.detach().cos() for output in outputs])

    def joined(values: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(values) if technique.sequence else values[0]

    found = [one.grad for one in inputs if one.grad is not None]
    up, down = [rank.up[0].grad for rank in ranks], [rank.down[0].grad for rank in ranks]
    assert None not in up
    assert None not in down
    return joined(outputs), joined(found), torch.cat(up), torch.cat(down, dim=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("sequence", [False, True])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_compute_what_the_whole_layer_does(ranks: int, sequence: bool, recompute: str) -> None:
    expected = gradients(Technique(dropout=0))
    assert all(tensor.count_nonzero() for tensor in expected)
    found = gradients(Technique(ranks=ranks, sequence=sequence, recompute=recompute, dropout=0))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
