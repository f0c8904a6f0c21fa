"""Programs in which a backward ends in an error that is caught: what is left behind, and how training goes on."""

from __future__ import annotations

from typing import Any

import torch


def caught(checkpoint: Any, note: Any, device: str, *, on: int, regions: int, exchange: bool) -> None:
    """A recomputation raises on one rank, or on all with an exchange; the program drops its graph and says so."""
    import contextlib

    import torch.distributed as dist
    from torch.distributed.nn.functional import all_reduce

    weight = torch.nn.Parameter(torch.randn(4, 4))
    torch.manual_seed(1 + dist.get_rank())
    x = torch.randn(3, 4, requires_grad=True)
    backward = False

    def inner(h):
        h = torch.sin(h @ weight)
        h = torch.tanh(all_reduce(h) if exchange else h)
        if backward and (exchange or dist.get_rank() == on):
            raise ArithmeticError("in what runs again")
        return torch.cos(h)

    h = x
    for _ in range(regions):
        h = checkpoint(inner, h)
    loss = h.square().mean()
    note("forward", loss)
    backward = True
    with contextlib.suppress(ArithmeticError):
        loss.backward()
    del h, loss
    note("empty", [x])
    backward = False
    weight.grad = None
    y = torch.randn(3, 4, requires_grad=True)
    checkpoint(inner, y).square().mean().backward()
    note("gradients", [y.grad, weight.grad])


def trained_after(checkpoint: Any, note: Any, device: str, *, where: str, wrapper: str, regions: int) -> None:
    """A step whose backward ends in an error on all ranks, in the last region or after the first one, and a step after that."""
    import contextlib

    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, h):
            return h.clone()

        @staticmethod
        def backward(ctx, grad):
            if failing:
                raise ArithmeticError("in backward")
            return grad

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 6), torch.nn.Linear(6, 4)

        def inner(self, h):
            h = self.second(torch.tanh(self.first(h)))
            return torch.sin(Fails.apply(h)) if where == "last" else h

        def forward(self, h):
            return checkpoint(self.inner, h)

    model = torch.nn.Sequential(*[Block() for _ in range(regions)])
    if wrapper == "sharded":
        for block in model:
            fully_shard(block)
        whole = fully_shard(model)
    else:
        whole = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    torch.manual_seed(1 + dist.get_rank())
    for step, failing in enumerate((False, True, False)):  # noqa: B007 - Fails reads it
        x = torch.randn(3, 4, requires_grad=True)
        with contextlib.suppress(ArithmeticError):
            whole(Fails.apply(x) if where == "first" else x * 1).square().mean().backward()
            optimizer.step()
        optimizer.zero_grad()
        if wrapper == "sharded":
            for one in (*model, model):
                one.reshard()
        note(f"gradients {step}", [x.grad])
        note(f"parameters {step}", [getattr(one, "full_tensor", lambda one=one: one)() for one in model.parameters()])
