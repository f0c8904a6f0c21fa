"""Sharded units whose regions have a selective policy."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts


def products() -> Any:
    """Contexts of a policy that keeps the results of products."""
    return create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])


def everything() -> Any:
    """Contexts of a policy that keeps the results of all operators, those of a wrapper included."""
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_SAVE)


def sharded(checkpoint: Any, note: Any, device: str, *, regions: int, outside: bool, reshard: bool, steps: int) -> None:
    """Regions inside of units or around them."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            return self.second(torch.tanh(self.first(h)))

        def forward(self, h):
            return self.inner(h) if outside else checkpoint(self.inner, h)

    blocks = [fully_shard(Block(), reshard_after_forward=reshard) for _ in range(regions)]
    parameters = [one for block in blocks for one in block.parameters()]
    optimizer = torch.optim.SGD(parameters, 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        h = x * 1
        for block in blocks:
            h = checkpoint(block, h) if outside else block(h)
        h.square().mean().backward()
        note(f"forward {step}", h)
        note(f"gradients {step}", [x.grad, *(one.grad.to_local() for one in parameters)])
        note(f"sharded {step}", [type(one).__name__ for block in blocks for one in block.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    note("whole parameters", [one.full_tensor() for one in parameters])


def several_units(checkpoint: Any, note: Any, device: str, *, units: int, reshard: bool, parent: bool, steps: int) -> None:
    """A region around several units, which may be of one parent that is a unit itself."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    layers = [fully_shard(torch.nn.Linear(4, 4), reshard_after_forward=reshard) for _ in range(units)]
    model = torch.nn.Sequential(*layers, torch.nn.Tanh())
    if parent:
        fully_shard(model, reshard_after_forward=reshard)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step in range(steps):
        x = torch.randn(3, 4, requires_grad=True)
        y = checkpoint(model, x * 1)
        y.square().mean().backward()
        note(f"forward {step}", y)
        note(f"gradients {step}", [x.grad, *(one.grad.to_local() for one in model.parameters())])
        optimizer.step()
        optimizer.zero_grad()
    note("whole parameters", [one.full_tensor() for one in model.parameters()])
