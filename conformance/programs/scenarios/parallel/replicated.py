"""Programs that train a replicated model: DistributedDataParallel, with each of its options."""

from __future__ import annotations

from typing import Any

import torch


def trained(
    checkpoint: Any,
    note: Any,
    device: str,
    *,
    regions: tuple[bool, ...],
    options: dict[str, Any],
    dropout: float,
    shared: bool,
    frozen: bool,
    unused: bool,
    accumulate: int,
    forwards: int,
    steps: int,
) -> None:
    import contextlib

    import torch.distributed as dist

    class Block(torch.nn.Module):
        def __init__(self, is_region):
            super().__init__()
            self.is_region, self.first, self.second = is_region, torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            h = h + self.second(torch.tanh(self.first(h)))
            return torch.nn.functional.dropout(h, dropout) if dropout else h

        def forward(self, h):
            return checkpoint(self.inner, h) if self.is_region else self.inner(h)

    blocks = [Block(is_region) for is_region in regions]
    if shared:
        blocks.append(blocks[0])
    if frozen:
        blocks[0].first.requires_grad_(False)
    model = torch.nn.Sequential(*blocks)
    if unused:
        model.register_module("unused", torch.nn.Linear(4, 4))
        model.forward = lambda h: torch.nn.Sequential(*blocks)(h)
    ddp = torch.nn.parallel.DistributedDataParallel(model, **options)
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        for part in range(accumulate):
            with ddp.no_sync() if part < accumulate - 1 else contextlib.nullcontext():
                inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(forwards)]
                loss = sum(ddp(one).square().mean() for one in inputs)
                loss.backward()
            note(f"forward {step} {part}", loss)
        note(f"gradients {step}", [one.grad for one in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", [*model.parameters()])


def around(checkpoint: Any, note: Any, device: str, *, blocks: int, static: bool, steps: int) -> None:
    """The region is around the wrapper."""
    import torch.distributed as dist

    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()) for _ in range(blocks)])
    ddp = torch.nn.parallel.DistributedDataParallel(model, static_graph=static)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        loss = checkpoint(ddp, x).square().mean()
        loss.backward()
        note(f"forward {step}", loss)
        note(f"gradients {step}", [one.grad for one in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    note("parameters", [*model.parameters()])
