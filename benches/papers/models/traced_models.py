"""Training steps of small real models, forward and backward, for recording: no dropout, nothing stored, no output kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

from benches.papers.models.transformer_layer import Shape, Technique, layer, weights

Step = Callable[[], Sequence[torch.Tensor]]


def softplus_chain(n: int) -> Step:
    """``n`` layers of one kernel that saves exactly its input; the input's gradient. Nobody holds the chain's output."""
    start = torch.linspace(-1, 1, 8, dtype=torch.float64).requires_grad_()
    gradient = torch.ones_like(start)

    def step() -> Sequence[torch.Tensor]:
        value = start
        for _ in range(n):
            value = functional.softplus(value)
        edge = torch.autograd.graph.get_gradient_edge(value)
        del value
        return torch.autograd.grad([edge], [start], [gradient])

    return step


def _gradients(model: nn.Module, loss: Callable[[], torch.Tensor]) -> Step:
    parameters = list(model.parameters())
    return lambda: torch.autograd.grad(loss(), parameters)


def transformer() -> Step:
    """Four layers of width 32 with 4 heads on 4 sequences of 16."""
    shape = Shape(s=16, b=4, h=32, a=4)
    layers = [weights(shape, dtype=torch.float32, device="cpu") for _ in range(4)]
    start = torch.randn(shape.s, shape.b, shape.h, generator=torch.Generator().manual_seed(1))
    parameters = [tensor for one in layers for tensor in one.tensors()]

    def step() -> Sequence[torch.Tensor]:
        values = [start]
        for one in layers:
            values = layer(values, [one], shape, Technique(dropout=0))
        loss = values.pop().square().mean()
        return torch.autograd.grad(loss, parameters)

    return step


def lstm() -> Step:
    """A cell of 32 units unrolled over 16 steps of 8 sequences."""
    torch.manual_seed(0)
    cell = nn.LSTMCell(16, 32)
    inputs = torch.randn(16, 8, 16)
    zeros = torch.zeros(8, 32)

    def loss() -> torch.Tensor:
        state = zeros, zeros
        for one in inputs:
            state = cell(one, state)
        return state[0].square().mean()

    return _gradients(cell, loss)


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.relu(value + self.second(functional.relu(self.first(value))))


def resnet() -> Step:
    """Twelve residual blocks of two convolutions with 8 channels on 4 images of 16 x 16."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *(_Block(8) for _ in range(12)))
    images = torch.randn(4, 3, 16, 16)
    return _gradients(model, lambda: model(images).square().mean())


MODELS: dict[str, Callable[[], Step]] = {"transformer": transformer, "lstm": lstm, "resnet": resnet}
