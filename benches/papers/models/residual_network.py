"""A residual network of 1000 convolutions on the meta device: what its activations take, with and without a plan."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benches.papers.meters.live import Live
from impls.schedules import Plan, checkpoint_sequential

# Bottlenecks by stage, in the proportions of the 152-layer network: 3 x 333 convolutions, and one before them.
DEPTHS = (21, 53, 238, 21)


class Bottleneck(nn.Module):
    """Three convolutions with batch norm, and the sum with what came in."""

    def __init__(self, width: int, inner: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, out, 1, bias=False),
            nn.BatchNorm2d(out),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or width != out:
            self.skip = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        """The block's output."""
        return torch.relu(self.body(value) + self.skip(value))


def network() -> nn.Sequential:
    """The network as a chain of blocks."""
    with torch.device("meta"):
        stages: list[nn.Module] = [
            nn.Sequential(
                nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
            )
        ]
        width = 64
        for index, depth in enumerate(DEPTHS):
            for block in range(depth):
                out = 256 * 2**index
                stages.append(Bottleneck(width, out // 4, out, 2 if index and not block else 1))
                width = out
        stages.append(nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)))
    return nn.Sequential(*stages)


@dataclass(frozen=True)
class Bytes:
    """Of activations: alive after forward, and the most during forward and the backward to the images."""

    alive: int
    peak: int


def bytes_of(model: nn.Sequential, plan: Plan, batch: int) -> Bytes:
    """Run a plan of the network forward and backward on ``batch`` images of 224 x 224. Gradients of weights are not made."""
    images = torch.empty(batch, 3, 224, 224, device="meta", requires_grad=True)
    with Live() as live:
        output = checkpoint_sequential(model, plan, images)
        alive = live.alive
        torch.autograd.grad(output, images, torch.empty_like(output))
    return Bytes(alive, live.peak)


def operations(model: nn.Sequential, plan: Plan) -> int:
    """Floating point operations of a plan, forward and backward to the weights, for one image."""
    images = torch.empty(1, 3, 224, 224, device="meta")
    with FlopCounterMode(display=False) as counter:
        output = checkpoint_sequential(model, plan, images)
        torch.autograd.grad(output, list(model.parameters()), torch.empty_like(output))
    return counter.get_total_flops()
