"""What workloads are made of: layers of several kinds of models, each of which is a region.

Each block says what of its forward a recomputation needs, up to the last tensor that autograd saves.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(Protocol):
    """One block. A call takes the value before it; ``needed`` runs the part of that call that backward needs."""

    def __call__(self, value: Tensor) -> Tensor:
        """The block's value."""

    def needed(self, value: Tensor) -> object:
        """Run forward up to the last tensor that autograd saves, with grad; operators after it are left out."""


class Operators:
    """A block of so many sines, one after the other. Each saves its input, so the last one need not run again."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, value: Tensor) -> Tensor:
        for _ in range(self.count):
            value = value.sin()
        return value

    def needed(self, value: Tensor) -> object:
        """All but the last."""
        for _ in range(self.count - 1):
            value = value.sin()
        return value


class Transformer(nn.Module):
    """A layer of GPT-2: causal attention and a network four times as wide, layer norm before each; no dropout."""

    def __init__(self, width: int, heads: int, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm, self.norm_of_network = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def _attended(self, value: Tensor) -> Tensor:
        batch, length, width = value.shape
        projected = self.project_in(self.norm(value)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, item = projected.permute(2, 0, 3, 1, 4).unbind()
        if self.fused:
            mixed = functional.scaled_dot_product_attention(query, key, item, is_causal=True)
        else:
            later = torch.ones(length, length, dtype=torch.bool, device=value.device).triu(1)
            scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
            mixed = scores.masked_fill(later, -math.inf).softmax(-1) @ item
        return value + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))

    def _hidden(self, value: Tensor) -> Tensor:
        return functional.gelu(self.up(self.norm_of_network(value)))

    def forward(self, value: Tensor) -> Tensor:
        """(batch, length, width) to the same."""
        value = self._attended(value)
        return value + self.down(self._hidden(value))

    def needed(self, value: Tensor) -> object:
        """All but the last matrix product, which saves what goes into it, and the sum."""
        return self._hidden(self._attended(value))


class Residual(nn.Module):
    """Two convolutions with group norm, and the sum with what came in. The last operator saves its own result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.norm_of_second = (nn.GroupNorm(4, width) for _ in range(2))

    def forward(self, value: Tensor) -> Tensor:
        """(batch, channels, height, width) to the same."""
        inner = functional.relu(self.norm(self.first(value)))
        return functional.relu(value + self.norm_of_second(self.second(inner)))

    def needed(self, value: Tensor) -> object:
        """All of it."""
        return self(value)


class Bottleneck(nn.Module):
    """A block of ResNet-50 with group norm: three convolutions, and the sum with what came in or its projection."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.enter, self.leave = nn.Conv2d(before, width, 1, bias=False), nn.Conv2d(width, after, 1, bias=False)
        self.middle = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for channels in (width, width, after))
        same = before == after and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, value: Tensor) -> Tensor:
        """(batch, channels, height, width) to four times the block's width in channels, and sides divided by its stride."""
        inner = functional.relu(self.norms[0](self.enter(value)))
        inner = functional.relu(self.norms[1](self.middle(inner)))
        return functional.relu(self.short(value) + self.norms[2](self.leave(inner)))

    def needed(self, value: Tensor) -> object:
        """All of it: the last operator saves its own result."""
        return self(value)


class Recurrent(nn.Module):
    """A layer of an LSTM over a whole sequence, cell by cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project, self.recur = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)

    def _until(self, value: Tensor) -> tuple[list[Tensor], Tensor, Tensor]:
        """The outputs of all cells but the last, and the two factors of that one's."""
        states: list[Tensor] = []
        hidden = cell = opened = squashed = value.new_zeros(value.shape[1:])
        for step, projected in enumerate(self.project(value).unbind()):
            if step:
                hidden = opened * squashed
                states.append(hidden)
            entered, forgotten, made, opened = (projected + self.recur(hidden)).chunk(4, -1)
            cell = forgotten.sigmoid() * cell + entered.sigmoid() * made.tanh()
            opened, squashed = opened.sigmoid(), cell.tanh()
        return states, opened, squashed

    def forward(self, value: Tensor) -> Tensor:
        """(length, batch, width) to the same."""
        states, opened, squashed = self._until(value)
        return torch.stack([*states, opened * squashed])

    def needed(self, value: Tensor) -> object:
        """All but the last product, which saves its factors, and the stack of outputs."""
        return self._until(value)


class Experts(nn.Module):
    """A mixture of experts with dropout: each expert takes the tokens that it scores highest, all the same number."""

    def __init__(self, width: int, experts: int, capacity: int) -> None:
        super().__init__()
        self.norm, self.gate, self.capacity = nn.LayerNorm(width), nn.Linear(width, experts, bias=False), capacity
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / math.sqrt(width))
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / math.sqrt(4 * width))

    def _parts(self, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        normed = self.norm(value)
        weights, tokens = self.gate(normed).softmax(-1).t().topk(self.capacity)
        hidden = functional.gelu(torch.bmm(normed[tokens], self.up))
        made = functional.dropout(torch.bmm(hidden, self.down), 0.1) * weights.unsqueeze(-1)
        return torch.zeros_like(value), tokens.flatten(), made.flatten(0, 1)

    def forward(self, value: Tensor) -> Tensor:
        """(tokens, width) to the same."""
        zeros, tokens, made = self._parts(value)
        return value + zeros.index_add(0, tokens, made)

    def needed(self, value: Tensor) -> object:
        """All but bringing the results back to their tokens, for which their places alone are saved, and the sum."""
        return self._parts(value)
